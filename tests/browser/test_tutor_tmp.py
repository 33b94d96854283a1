import time, json
from pathlib import Path
import pytest
from tests.browser.conftest import Front
NB = Path(__file__).parents[2] / "notebooks"
@pytest.mark.parametrize("stem", [p.stem for p in sorted(NB.glob("0*.ipynb"))])
def test_runs(lab: Front, stem: str) -> None:
    name = f"{stem}.ipynb"
    (lab.root / name).write_bytes((NB / name).read_bytes())
    lab.open(name)
    t = time.time()
    lab.run_all()
    lab.wait_idle()
    lab.page.wait_for_timeout(700)
    saved = lab.save()
    outs = [o for c in saved["cells"] if c["cell_type"] == "code" for o in c["outputs"]]
    errors = [o for o in outs if o["output_type"] == "error"]
    assert not errors, errors
    print(stem, round(time.time()-t, 1), "live left:", sum("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outs), "stderr:", [o for o in outs if o.get("name")=="stderr"], len(json.dumps(saved)))
    lab.page.screenshot(path=f"/tmp/tutor-nb/lab_{stem}.png")
