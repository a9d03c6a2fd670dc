"""`rloop deploy`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import click

from rloop_core.cli.options import json_option
from rloop_core.cli.output import print_json


@click.command("deploy")
@click.option(
    "--store", metavar="URI",
    help="Default object store of the deployed runs, such as s3://bucket/prefix.  [default: what the server has]",
)  # fmt: skip
@click.option(
    "--api", metavar="URL",
    help="API of the Prefect server, such as http://host:4200/api.  [default: PREFECT_API_URL or the profile's]",
)  # fmt: skip
@click.option(
    "--pool-type", type=click.Choice(["process", "docker", "kubernetes"]), default="process", show_default=True,
    help="What starts runs in the pool rloop-gpu: the worker itself, Docker or Kubernetes.",
)  # fmt: skip
@click.option(
    "--silence", type=click.IntRange(min=35), metavar="SECONDS",
    help="A run without a heartbeat for so long becomes Crashed.  [default: what the server has, else 300]",
)  # fmt: skip
@click.option(
    "--resumes", type=click.IntRange(1, 100), metavar="N",
    help="Restart a crashed run at most N times.  [default: what the server has, else 3]",
)  # fmt: skip
@click.option(
    "--notify", metavar="TYPE/NAME",
    help="Notification block of the server, such as slack-webhook/team, for crashes, failures and empty expert sets.  "
    "[default: what the server has]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@json_option
def command(store: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Set up a Prefect server for rloop: work pools, their limits, the deployments of deployments/prefect.yaml, and
    automations, which start crashed runs again.

    A later `rloop deploy` changes only what differs from the files, and lists it. Limits, pauses, switches and the
    store stay as the server has them. Credentials come from the environment: PREFECT_API_AUTH_STRING.

    \b
    Examples:
      rloop deploy --store s3://bucket/rloop
      rloop deploy --api http://prefect:4200/api --pool-type kubernetes --store s3://bucket/rloop --dry-run
      prefect deployment run rloop/iterate -p config_file=demo -p name=first
    """
    from flows.deploy import deploy
    from rloop_core.errors import ConfigError

    if store is not None and "@" in urlsplit(store).netloc:
        fix = "leave user and key out: workers take credentials from their environment or instance role"
        raise ConfigError("everybody can read the store's address on the server", field="--store", fix=fix)
    changes = deploy(store=store, dry_run=dry_run, **options)
    changed = sum(change["action"] != "left" for change in changes)
    if as_json:
        print_json({"dry_run": dry_run, "changed": changed, "changes": changes})
        return
    for change in changes:
        details = f"  ({'; '.join(change['details'])})" if change["details"] else ""
        click.echo(f"{change['action']:8} {change['kind']:11} {change['name']}{details}")
    if not changed:
        click.echo("nothing to change: the server has it all")
    elif dry_run:
        click.echo(f"dry run: {changed} would change")
