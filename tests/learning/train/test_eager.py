import subprocess
import sys

import pytest

CODE = """
import sys
import torch
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.lars import Lars
from dedloc_kit.learning.train.optim.outer import NesterovSGD
import dedloc_kit.roles.volunteer

model = torch.nn.Linear(2, 1)
card = Card(FlatModel(model, torch.device("cpu")), lambda model, batch, step: Loss.of(model(batch["x"]).mean(), 3))
card.submit({"x": torch.ones(3, 2)})
card.results()
for optimizer in (Lamb(model.parameters(), lr=0.1), Lars(model.parameters(), lr=0.1)):
    optimizer.step()
    optimizer.zero_grad()
NesterovSGD(model.parameters(), lr=0.1, momentum=0.9)
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.child
def test_a_volunteer_of_a_plain_model_never_waits_for_torchs_compiler_to_be_imported() -> None:
    # In a process of its own: what the others are forked from has imported it for those who need it.
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"
