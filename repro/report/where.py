"""What a reproduction left, and where it lies."""


def print_jobs(done, short):
    """One block for each job: why it ran, what it recorded, where.

    Args:
        done: what :func:`repro.reproduce.reproduce` returns.
        short: makes a path short for a reader.
    """
    for job in done:
        summary = job["summary"]
        given = "".join(f" {name} {value}" for name, value in job["parameters"].items())
        how = f"{job['seconds']:.0f} s; {job['why']}" if job["why"] else "unchanged"
        print(f"\n{job['notebook']}{given} ({how})")
        if "numbers" in summary:
            print("  numbers          " + ", ".join(f"{count} {how}" for how, count in summary["numbers"].items()))
            if "verdicts" in summary:
                each = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
                print(f"  verdicts         {each}; what cannot be checked has no number of ours")
        else:
            first, last, steps = (summary[key] for key in ("first_loss", "last_loss", "steps"))
            print(f"  loss             {first:.4f} -> {last:.4f} in {steps} steps")
        print(f"  run folder       {short(job['run_folder'])}")
        print(f"  executed copy    {short(job['executed_notebook'])}")
        for path in job["figures"]:
            print(f"  figure           {short(path)}")
    ran = sum(bool(job["why"]) for job in done)
    print(f"\n{ran} of {len(done)} notebooks ran, the others were unchanged; repro reproduce --again runs all")
