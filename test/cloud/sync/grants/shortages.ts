// What the cloud's own requests are short of, with the terms that hold where a test sets no others.
import { CloudShortages } from '../../../../src/cloud/sync/grants/cloud-shortages.ts'

export function cloudShortages(): CloudShortages {
  return new CloudShortages({ syncEveryMs: 300_000, grantHorizonMs: 86_400_000 })
}
