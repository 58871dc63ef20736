/** The program that tests start. CI names a built one, which starts in less than half the time of the sources. */
import { fileURLToPath } from 'node:url'

export const COMMAND =
  process.env['TALLYGATE_TEST_COMMAND'] ?? fileURLToPath(new URL('../../bin/tallygate.js', import.meta.url))
