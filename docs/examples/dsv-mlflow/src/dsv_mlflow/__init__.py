"""Logs a study to MLflow: one run for the study, and one below it for each candidate."""

from dsv_plugins import Observer, ObserverPlugin, hookimpl

dsv_api = 2


class MLflow(Observer):
    """Logs settings, training curves, losses of all selectors, and how the study ended.

    Args:
        experiment: Name of the experiment.
        store: Address of the tracking server, or a folder; MLflow's own default if None.
    """

    def __init__(self, experiment="dsv", store=None):
        self.experiment, self.store = experiment, store

    def started(self, run, candidates, planned=None):
        from mlflow import MlflowClient  # here, since listing plugins must be quick

        self.client = MlflowClient(tracking_uri=self.store)
        found = self.client.get_experiment_by_name(self.experiment)
        self.folder = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.study = self.new_run(run.name)
        self.runs = {}
        self.client.set_tag(self.study, "run folder", str(run))
        self.client.set_tag(self.study, "planned candidates", str(planned))

    def training(self, candidate):
        self.run_of(candidate)

    def updated(self, candidate, update, planned, loss):
        self.client.log_metric(self.run_of(candidate), "training loss", loss, step=update)

    def finished(self, candidate, seconds, evaluation=None):
        run = self.run_of(candidate)
        self.client.log_metric(run, "seconds", seconds)
        if evaluation is not None:
            self.client.log_metric(run, "mean test score", float(evaluation.scores.test.mean()))
        self.client.set_terminated(run)

    def failed(self, candidate, reason):
        self.client.set_tag(self.run_of(candidate), "reason", reason)
        self.client.set_terminated(self.run_of(candidate), "FAILED")

    def study_ended(self, result):
        for entry in result.candidates:
            for selector, loss in entry.losses.items():
                if loss is not None:  # which stands for one that is not finite
                    self.client.log_metric(self.run_of(entry.candidate), selector, loss)
        for selector, choice in result.selected.items():
            self.client.set_tag(self.study, f"chosen by {selector}", str(choice.candidate))
            self.client.log_metric(self.study, selector, choice.loss)
        self.end("FINISHED")

    def study_failed(self, error):
        self.client.set_tag(self.study, "reason", str(error))
        self.end("FAILED")

    def end(self, status):
        """Close every run, those of candidates too that were in training when the study failed."""
        for run in [*self.runs.values(), self.study]:
            if self.client.get_run(run).info.status == "RUNNING":
                self.client.set_terminated(run, status)

    def run_of(self, candidate):
        """The run of a candidate; one that was trained earlier gets a new one."""
        if candidate.id not in self.runs:
            self.runs[candidate.id] = self.new_run(str(candidate), {"mlflow.parentRunId": self.study})
            for name, value in candidate.params.items():
                self.client.log_param(self.runs[candidate.id], name, value)
        return self.runs[candidate.id]

    def new_run(self, name, tags=None):
        return self.client.create_run(self.folder, run_name=name, tags=tags).info.run_id


@hookimpl
def observer():
    return ObserverPlugin("mlflow", MLflow, "A study and its candidates as runs of MLflow")
