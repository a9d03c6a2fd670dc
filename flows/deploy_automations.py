"""What `deployments/automations.yaml` has the server do by itself: crash what is silent, go on, tell of trouble.

The file decides what they are; the seconds, the number of resumes, the block told and whether each is switched on are
the operator's, and stay as the server has them.
"""

from dataclasses import dataclass
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger
from prefect.exceptions import ObjectNotFound

from flows.deploy_plan import Change, change, deployments_folder
from flows.idempotent_requests import send_once
from rloop_core.errors import ConfigError

_RUN_COUNT = "prefect.run-count"


@dataclass(frozen=True)
class Wishes:
    """What `rloop deploy` was asked for; None keeps what the server has, else takes the file's.

    Args:
        silence: Seconds without a heartbeat after which a run is taken for dead.
        resumes: Times that a crashed run is started again by itself.
        notify: Id of the block that is told of trouble; see `block_to_notify`.
    """

    silence: int | None = None
    resumes: int | None = None
    notify: str | None = None


def deploy_automations(client: SyncPrefectClient, wishes: Wishes, dry_run: bool) -> list[Change]:
    """Create or put right each automation; what was done to each."""
    content = yaml.safe_load((deployments_folder() / "automations.yaml").read_text())
    changes = []
    for given in content["automations"]:
        there = _there(client, given["name"])
        values = _values(content, given, wishes, there)
        if "{notify}" in str(given) and values["notify"] is None:
            continue  # an automation cannot point to a block that nobody has named
        changes.append(_put(client, given, values, there, dry_run))
    return changes


def _put(
    client: SyncPrefectClient, given: dict[str, Any], values: dict[str, Any], there: Automation | None, dry_run: bool
) -> Change:
    wanted = AutomationCore(**_filled({**given, "tags": ["rloop"]}, values), enabled=there.enabled if there else True)
    used = [f"{name} {value}" for name, value in values.items() if name != "starts" and f"{{{name}}}" in str(given)]
    what = f"the automation {wanted.name!r}"
    if there is None:
        if not dry_run:
            send_once(
                client, what, lambda: client.create_automation(wanted), lambda: _there(client, wanted.name) is not None
            )
        return change("automation", wanted.name, "created", used)
    differing = _differing(there, wanted)
    if differing and not dry_run:
        send_once(
            client,
            what,
            lambda: client.update_automation(there.id, wanted),
            lambda: _differing(_there(client, wanted.name), wanted) == [],
        )
    kept = [] if there.enabled else ["kept: off"]
    return change("automation", wanted.name, "changed" if differing else "left", [*differing, *used, *kept])


def _differing(there: Automation | None, wanted: AutomationCore) -> list[str]:
    fields = ("description", "tags", "trigger", "actions")
    return [field for field in fields if getattr(there, field, None) != getattr(wanted, field)]


def _values(content: dict[str, Any], given: dict[str, Any], wishes: Wishes, there: Automation | None) -> dict[str, Any]:
    """What the file's placeholders stand for: as asked, else as the server has it, else as the file says."""
    silence, resumes, notify = wishes.silence, wishes.resumes, wishes.notify
    if there is not None and isinstance(there.trigger, EventTrigger):
        if "{silence}" in str(given):
            silence = silence or int(there.trigger.within.total_seconds())
        resumes = resumes or len(_starts(there.trigger)) or None
        told = [action.block_document_id for action in there.actions if isinstance(action, SendNotification)]
        notify = notify or (str(told[0]) if told else None)
    resumes = resumes or int(content["resumes"])
    starts = [str(start) for start in range(1, resumes + 1)]
    return {"silence": silence or int(content["silence"]), "resumes": resumes, "starts": starts, "notify": notify}


def _starts(trigger: EventTrigger) -> list[str]:
    found = dict(trigger.match.items()).get(_RUN_COUNT, []) if not isinstance(trigger.match, dict) else []
    return list(found)


def _filled(template: Any, values: dict[str, Any]) -> Any:
    """The template with its placeholders filled in; one that stands alone becomes the value itself."""
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
    """Id of the notification block called `TYPE/NAME`, such as `slack-webhook/team`; None of None.

    Raises:
        ConfigError: It is not there, or cannot notify.
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


def _there(client: SyncPrefectClient, name: str) -> Automation | None:
    found = client.read_automations_by_name(name)
    return found[0] if found else None
