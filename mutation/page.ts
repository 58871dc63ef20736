/** The page of mutation testing with the scores, and the list of an area's surviving mutants. */
import type { Area } from './areas.ts'
import { type Score, type Survivor, percent, scoreOf } from './report.ts'
import { reasonFor } from './survivors.ts'

const TEXT_MAX = 90

export const USAGE = `npm run mutation                                      all areas, then the page of scores
npm run mutation -- core agent-sessions               these areas
npm run mutation -- core --file src/core/accounts/grant.ts     one file, as text, without the page of scores
npm run mutation -- --concurrency 4                   four mutants at a time
npm run mutation -- --force                           also mutants whose code and tests have not changed
npm run mutation -- --page-only                       the page of scores from the last reports
`

const INTRODUCTION = `# Mutation testing

[Stryker](https://stryker-mutator.io) changes one expression of the source at a time and runs the tests that reach it. If no test fails, the
mutant has survived: a test is missing, or the change makes no difference. Mutation testing covers core and the code of the agent and the
cloud that charges, grants and bills tokens.

\`\`\`
${USAGE}\`\`\`

A run stores its results in \`.tallygate/mutation\`, and for each area the list \`survivors.md\` of the surviving mutants, grouped by reason.
The next run tests only mutants of changed code or tests; \`--force\` tests all of them. An area takes from seconds to an hour. CI does not
run mutation tests.

- \`mutation/areas.ts\` lists the areas with their files and tests. The tests of an area start no processes. Tests that take seconds and only
  kill mutants that other tests also kill are left out.
- All tests of an area run in one process, which imports the code once (\`mutation/test-runner.ts\`). Properties run at most 20 cases each.
  Caches stay from one mutant to the next, so a few mutants survive that a fresh process would kill.
- Limits are in processor time, so that other work on the machine changes no result. A test that takes 5 s of it has timed out
  (\`mutation/endless.ts\`). The tests of the mutated file run first, then those of its folder and of the folder above. A mutant
  that survives for 3 s counts as a survivor, so scores are lower bounds. A test that waits while nothing is under way in the process has failed.
- Error texts (\`mutation/ignore-error-text.ts\`) and module constants are not mutated. Every test of an area would have to run for each
  constant.
- \`mutation/survivors.ts\` gives the reasons for survivors, by file. "No fast test" names the behavior that no test of the area checks within
  3 s; a slower test may check it.

## Scores

Each row is the result of the last run of the area, on the code and the tests of that time.

`

/** @param before the page so far: an area without a report keeps its row, because reports stay on the machine that made them */
export function page(areas: readonly Area[], before: string): string {
  return [
    `${INTRODUCTION}| Area | Name | Mutants | Killed | Timed out | Survived | Score | Target |`,
    '| --- | --- | --- | --- | --- | --- | --- | --- |',
    ...areas.map((area) => {
      const score = scoreOf(area)
      return score === null ? rowIn(before, area) : rowOf(score)
    }),
    '',
  ].join('\n')
}

function rowOf({ area, mutants, killed, endless, survivors }: Score): string {
  const cells = [mutants, killed, endless, survivors.length, percent({ killed, mutants })]
  return `| ${area.title} | \`${area.name}\` | ${cells.join(' | ')} | ${area.target} % |`
}

function rowIn(before: string, { title, name, target }: Area): string {
  const row = before.split('\n').find((each) => each.startsWith('|') && each.includes(` \`${name}\` `))
  return row ?? `| ${title} | \`${name}\` | | | | | not measured | ${target} % |`
}

export function survivorList({ area, survivors }: Pick<Score, 'area' | 'survivors'>): string {
  const byReason = Map.groupBy(survivors, (survivor) => reasonFor(survivor) ?? 'No reason yet.')
  const groups = [...byReason]
    .toSorted(([, a], [, b]) => b.length - a.length)
    .map(([reason, those]) => `${reason}\n\n${those.map(line).join('\n')}\n`)
  return `# Survivors of ${area.name}\n\n${groups.length === 0 ? 'None.\n' : groups.join('\n')}`
}

function line({ file, line: at, before, after }: Survivor): string {
  return `- \`${file}:${at}\` ${code(before)} → ${after === '' ? '(removed)' : code(after)}`
}

/** The text between more backticks than it has in a row. */
function code(text: string): string {
  const short = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)} …` : text
  const fence = '`'.repeat(Math.max(0, ...(short.match(/`+/g) ?? []).map(({ length }) => length)) + 1)
  return fence.length > 1 ? `${fence} ${short} ${fence}` : `\`${short}\``
}
