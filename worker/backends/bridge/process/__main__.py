"""Started as `python <this folder> --endpoint E --agent-root R --hermes-home H`: makes the folder the package
`portal_bridge`, with no module of ours on the path where Hermes looks for its own."""

import importlib.util
import sys
from pathlib import Path

NAME = "portal_bridge"


def load() -> None:
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load()
    importlib.import_module(f"{NAME}.child").main(sys.argv[1:])
