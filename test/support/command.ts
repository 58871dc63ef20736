import { fileURLToPath } from 'node:url'

export const SOURCES = fileURLToPath(new URL('../../bin/tallygate.js', import.meta.url))

/** The program that tests start. CI names a built one, which starts in less than half the time of the sources. */
export const COMMAND = process.env['TALLYGATE_TEST_COMMAND'] ?? SOURCES
