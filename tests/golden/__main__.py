"""Write the files anew."""

from tests.golden import write

write()
