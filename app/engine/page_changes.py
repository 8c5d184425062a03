"""Carries out in the model what a planned step changes in page tables and pages. Knows nothing of sequences."""

from app.engine.model_runner import ModelRunner
from app.engine.scheduling.sequence import Step


def apply_page_changes(step: Step, runner: ModelRunner) -> None:
    """Writes the step's page table entries and makes its copies of pages."""
    tables, groups = runner.page_tables, len(runner.group_windows)
    for slot, entry, page in step.new_pages:
        tables[entry % groups, slot, entry // groups] = page
    for slot, index, page in step.new_state_pages:
        tables[groups, slot, index] = page
    for source, target in step.copied_pages:
        runner.copy_page(source, target)
    for source, target in step.copied_state_pages:
        runner.copy_state_page(source, target)
    for source, target, positions in step.turned_pages:
        runner.copy_page_turned(source, target, positions)
