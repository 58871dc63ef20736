/** `npm run bench:console`: how long a large cloud takes for each page of the console. */
import { parseArgs } from 'node:util'
import { orUsage } from '../scripts/or-usage.ts'
import { wholeNumber } from '../scripts/whole-number.ts'
import { consolePages } from './console/pages.ts'
import { markdown, table } from './table.ts'

const USAGE = `npm run bench:console -- [OPTION...]

Medians of the time from the request to the end of the response, over HTTP, from a cloud with SQLite. The last line says
whether all are within the target.

  --devices N     devices, and as many sessions and changes (10000)
  --records N     usage records (1000000)
  --rounds N      requests for each page (11)
  --target MS     longest median (300)
  --markdown      the table as Markdown
  --help          this text
`

const { target, isMarkdown, rounds, ...amounts } = orUsage(USAGE, () => {
  const { values } = parseArgs({
    options: {
      devices: { type: 'string', default: '10000' },
      records: { type: 'string', default: '1000000' },
      rounds: { type: 'string', default: '11' },
      target: { type: 'string', default: '300' },
      markdown: { type: 'boolean', default: false },
    },
  })
  return {
    devices: wholeNumber('--devices', values.devices),
    records: wholeNumber('--records', values.records),
    rounds: wholeNumber('--rounds', values.rounds),
    target: wholeNumber('--target', values.target),
    isMarkdown: values.markdown,
  }
})

const pages = await consolePages(amounts, rounds)
const rows = pages.map(({ path, medianMs, slowestMs }) => [path, medianMs.toFixed(1), slowestMs.toFixed(1)])
console.log((isMarkdown ? markdown : table)([['page', 'median, ms', 'slowest, ms'], ...rows], 1))
const slow = pages.filter(({ medianMs }) => medianMs > target)
console.log(slow.length === 0 ? `All pages are within ${target} ms.` : `${slow.length} pages are too slow.`)
process.exitCode = slow.length === 0 ? 0 : 1
