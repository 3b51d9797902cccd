// Where the page begins: what stands around the views, the connection to the server, and the view of this address.

import * as header from "./header.js";
import * as router from "./router.js";
import * as run from "./run.js";

header.begin();
run.begin();
router.begin(document.getElementById("nav"));
