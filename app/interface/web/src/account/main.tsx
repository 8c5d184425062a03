// The page /account.
import { render } from "preact";

import "../common/style.css";

render(<main class="account" />, document.getElementById("page")!);
