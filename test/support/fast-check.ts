/**
 * fast-check for the tests of properties. They draw the same cases in every run, so that a change is judged and not the luck
 * of the draw; TALLYGATE_TEST_SEED draws others: a whole number, or `random` for new ones.
 */
import fc from 'fast-check'

const SEED = 20_261

const asked = process.env['TALLYGATE_TEST_SEED'] ?? String(SEED)
if (asked !== 'random') {
  const seed = Number(asked)
  if (!Number.isSafeInteger(seed)) throw new Error(`TALLYGATE_TEST_SEED is a whole number or random, not ${asked}`)
  fc.configureGlobal({ ...fc.readConfigureGlobal(), seed })
}

export { default } from 'fast-check'
