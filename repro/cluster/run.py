"""From a recipe and a site to a job, step by step as the command line and the notebooks take them."""

from dataclasses import fields
from pathlib import Path

from repro.cluster import slurm, submit
from repro.cluster.follow import follow
from repro.cluster.job import Options, plan, script
from repro.errors import InputError, RunFailed, RunInterrupted, unknown


def prepare(recipe, site, run_folder, options=None):
    """The :class:`repro.cluster.job.JobPlan` of training and the text of its script.

    Raises:
        InputError: the site cannot give what is asked.
    """
    found = plan(recipe, site, run_folder, options)
    return found, script(found)


def dry_run(made, text):
    """What Slurm would say to the script, without submitting it.

    Raises:
        InputError: it would be refused.
    """
    import tempfile

    require_files(made)
    with tempfile.TemporaryDirectory(prefix="repro-job-") as folder:
        path = Path(folder) / "job.sh"
        path.write_text(text, encoding="utf-8")
        return slurm.test_only(path)


def send(recipe, made, text, again=False):
    """Submit a prepared job once; see :func:`repro.cluster.submit.submit`.

    Raises:
        InputError: refused by Slurm or the site, or a file that the job needs is missing.
    """
    require_files(made)
    return submit.submit(recipe, made.run_folder, text, site=made.site.name, again=again)


def require_files(made):
    """Raises :class:`InputError` where the environment that the job would use is not there."""
    site, path = made.site, Path(made.env) if made.env else None
    if site.environment == "packed" and not path.is_file():
        raise InputError(
            f"site {site.name} runs from a packed environment and {path} is no file; "
            f"make one with conda-pack (repro job build --site {site.name}) and name it with --env"
        )
    if site.environment == "prefix" and path and not (path / "bin" / "python").exists():
        raise InputError(f"--env {path} is no environment: it has no bin/python")
    if made.site.account_required and made.account is None:
        raise InputError(f"site {site.name} asks for an account: --account NAME")


def run_job(recipe, site, run_folder, options=None, show=None, again=False):
    """Submit a recipe's job, or find it, and follow it to its end; for notebooks.

    Args:
        site: :class:`repro.cluster.site.Site`, or the name of one.
        show: called with each new line about the job.

    Returns:
        The :class:`repro.records.run_folder.RunFolder` of the completed run.

    Raises:
        InputError: nothing was submitted.
        RunFailed: the run failed; names the error.
        RunInterrupted: it ended before its last step; the same call goes on.
    """
    from repro.cluster.site import load_site

    if not site:
        raise InputError("site is empty; it names a shipped site or the TOML file of one")
    site = load_site(site) if isinstance(site, str) else site
    made, text = prepare(recipe, site, run_folder, options)
    require_rules(recipe, site, text)
    sent = send(recipe, made, text, again=again)
    if sent.how == "completed":
        return sent.folder
    verdict = follow(sent.folder, sent.record, show=show and Lines(show))
    require_completed(verdict, sent.folder)
    return sent.folder


def require_rules(recipe, site, text):
    """Raises :class:`InputError` where the job of a recipe breaks a rule of the site that is an error."""
    from repro.cluster.rules import of_job

    errors = [one for one in of_job(recipe, site, text) if one.severity == "error"]
    if errors:
        raise InputError(
            f"{len(errors)} rules of {site.name} are broken, the first: {errors[0].what}; {errors[0].fix} "
            f"(repro check {recipe.name} --site {site.name} lists all)"
        )


def options_from(given):
    """:class:`repro.cluster.job.Options` from a dictionary.

    Raises:
        InputError: an unknown name, with the nearest.
    """
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            raise unknown("option of a job", name, known)
    return Options(**given)


class Lines:
    """What the follower sees, as lines: the job's own output, and its state whenever that changes."""

    def __init__(self, say):
        self.say, self.last = say, None

    def __call__(self, view):
        for line in view.lines:
            self.say(f"  {line}")
        if view.text != self.last:
            self.last = view.text
            self.say(view.text + (f" ({view.clock})" if view.clock else ""))


def require_completed(verdict, folder):
    """Raises what a verdict that is not ``completed`` is to a caller."""
    if verdict.state == "failed":
        raise RunFailed(f"{verdict.reason} (run folder {folder.path})")
    if verdict.state != "completed":
        raise RunInterrupted(f"{verdict.reason or verdict.state} (run folder {folder.path})")
