"""Create or update the automations of `deployments/automations.yaml`: restart crashed runs, notify of trouble.

The file decides what they do. The seconds, the number of restarts, the notified block and whether each is enabled
belong to the server's operator, and stay as the server has them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger
from prefect.exceptions import ObjectNotFound

from flows.deploy.plan import Change, change, read_yaml
from rloop_core.errors import ConfigError
from tasks.prefect_workarounds import send_once

_RUN_COUNT = "prefect.run-count"


@dataclass(frozen=True)
class Options:
    """Options of `rloop deploy`; None keeps the server's value, else takes the file's.

    Attributes:
        silence: Seconds without a heartbeat after which a run counts as crashed.
        resumes: How often a crashed run is started again.
        notify: Id of the block that is notified of trouble; see `block_to_notify`.
    """

    silence: int | None = None
    resumes: int | None = None
    notify: str | None = None


def deploy_automations(client: SyncPrefectClient, options: Options, dry_run: bool) -> list[Change]:
    """Create or update each automation, and return the changes."""
    content = read_yaml("automations.yaml")
    changes = []
    for template in content["automations"]:
        existing = _existing(client, template["name"])
        values = _values(content, template, options, existing)
        if "{notify}" in str(template) and values["notify"] is None:
            continue  # there is no block to notify
        changes.append(_deploy(client, template, values, existing, dry_run))
    return changes


def _deploy(
    client: SyncPrefectClient,
    template: dict[str, Any],
    values: dict[str, Any],
    existing: Automation | None,
    dry_run: bool,
) -> Change:
    enabled = existing.enabled if existing else True
    plan = AutomationCore(**_filled({**template, "tags": ["rloop"]}, values), enabled=enabled)
    used = [f"{name} {value}" for name, value in values.items() if name != "starts" and f"{{{name}}}" in str(template)]
    what = f"the automation {plan.name!r}"
    if existing is None:
        if not dry_run:
            exists = partial(_existing, client, plan.name)
            send_once(client, what, lambda: client.create_automation(plan), lambda: exists() is not None)
        return change("automation", plan.name, "created", used)
    differing = _differing(existing, plan)
    if differing and not dry_run:
        update = partial(client.update_automation, existing.id, plan)
        send_once(client, what, update, lambda: _differing(_existing(client, plan.name), plan) == [])
    kept = [] if existing.enabled else ["kept: off"]
    return change("automation", plan.name, "changed" if differing else "left", [*differing, *used, *kept])


def _existing(client: SyncPrefectClient, name: str) -> Automation | None:
    automations = client.read_automations_by_name(name)
    return automations[0] if automations else None


def _differing(existing: Automation | None, plan: AutomationCore) -> list[str]:
    fields = ("description", "tags", "trigger", "actions")
    return [field for field in fields if getattr(existing, field, None) != getattr(plan, field)]


def _values(
    content: dict[str, Any], template: dict[str, Any], options: Options, existing: Automation | None
) -> dict[str, Any]:
    """Return the values of the placeholders: as given, else as the server has them, else as in the file."""
    silence, resumes, notify = options.silence, options.resumes, options.notify
    if existing is not None and isinstance(existing.trigger, EventTrigger):
        if "{silence}" in str(template):
            silence = silence or int(existing.trigger.within.total_seconds())
        if not isinstance(existing.trigger.match, dict):
            resumes = resumes or len(dict(existing.trigger.match.items()).get(_RUN_COUNT, [])) or None
        blocks = [action.block_document_id for action in existing.actions if isinstance(action, SendNotification)]
        notify = notify or (str(blocks[0]) if blocks else None)
    resumes = resumes or int(content["resumes"])
    starts = [str(start) for start in range(1, resumes + 1)]
    return {"silence": silence or int(content["silence"]), "resumes": resumes, "starts": starts, "notify": notify}


def _filled(template: Any, values: dict[str, Any]) -> Any:
    """Return the template with its placeholders filled in; a text that is one placeholder becomes the value itself."""
    if isinstance(template, dict):
        return {name: _filled(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    for name, value in values.items():
        if template == f"{{{name}}}":
            return value
        template = template.replace(f"{{{name}}}", str(value))
    return template


def block_to_notify(client: SyncPrefectClient, notify: str | None) -> str | None:
    """Return the id of the notification block `TYPE/NAME`, such as `slack-webhook/team`; None for None.

    Raises:
        ConfigError: It does not exist, or cannot notify.
    """
    if notify is None:
        return None
    kind, _, name = notify.partition("/")
    try:
        block = client.read_block_document_by_name(name, kind)
    except ObjectNotFound:
        fix = "make it in the UI (Blocks), and give TYPE/NAME as prefect block ls shows them"
        raise ConfigError(f"the server has no block {notify!r}", field="--notify", fix=fix) from None
    if block.block_schema is not None and "notify" not in block.block_schema.capabilities:
        fix = "name a notification block, such as slack-webhook/NAME"
        raise ConfigError(f"{notify} cannot notify anybody", field="--notify", fix=fix)
    return str(block.id)
