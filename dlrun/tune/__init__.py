"""Find the settings that make a job fast: `dlrun tune`.

A `Space` is what may be set; `search.propose(space, outcomes)` says which trial comes next and `search.judge` what they
prove, both pure: a search is a function of its journal, so that it resumes after any line of it. `trial` turns a trial
into a launch, `journal` keeps the outcomes, `report` shows them, and the winner becomes a profile that `dlrun launch`
picks up (`dlrun.launch.profile` holds its format).
"""
