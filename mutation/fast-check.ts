// fast-check for tests against mutants: fewer cases, and no search for a smaller one. A property that fails has found its mutant.
import fc from '../node_modules/fast-check/lib/fast-check.js'

const RUNS_MAX = 20

function assert<T>(property: fc.IProperty<T> | fc.IAsyncProperty<T>, parameters?: fc.Parameters<T>): unknown {
  const numRuns = Math.min(parameters?.numRuns ?? RUNS_MAX, RUNS_MAX)
  return fc.assert(property as fc.IAsyncProperty<T>, { ...parameters, numRuns, endOnFailure: true })
}

export default { ...fc, assert }
