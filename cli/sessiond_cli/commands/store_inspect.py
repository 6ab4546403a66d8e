"""``sessionctl store inspect``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sessiond.domain.keys import KeyRing
from sessiond_cli.options import JsonFlag
from sessiond_cli.output import Output
from sessiond_cli.trees import print_tree

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue


def inspect(
    *,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="Any file below a store root."
        ),
    ],
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            envvar="SESSIOND_KEY_FILE",
            metavar="PATH",
            exists=True,
            dir_okay=False,
            help="The server key, to check seals with. Without it all but that is shown.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Print a file of the store in a readable form: segment, manifest, head, session, engine.

    Asks no daemon and changes nothing. Token ids are counted, never shown.
    """
    # Only this command needs the store, and with it NumPy and the codecs.
    from sessiond.store.inspect import describe  # noqa: PLC0415
    from sessiond.store.keyfile import load_server_key  # noqa: PLC0415

    keys = None
    if key_file is not None:
        keys = KeyRing.from_server_key(load_server_key(key_file, create=False))
    described: JsonValue = describe(file, keys)
    Output(json).show(described, lambda screen: print_tree(screen, described))
