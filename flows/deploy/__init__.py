"""`rloop deploy`: put what `deployments/` describes on a Prefect server."""

from flows.deploy.apply import deploy

__all__ = ["deploy"]
