import { z } from 'zod'
import { cellName } from '../../protocol/wire.ts'

export const CELLS_MAX = 50

const DATABASE = /^postgres(ql)?:\/\/\S+$/

const cell = z.strictObject({
  name: cellName,
  /** As the setting `db`. */
  url: z.string().regex(DATABASE, { error: 'must be a URL that begins with postgres:// or postgresql://' }),
  /** A file with the password of the database. Default: the setting `db_password`. */
  password_file: z.string().min(1).optional(),
  /** False: it gets no new accounts. Default: true. */
  new_accounts: z.boolean().optional(),
  /** As the setting `store.restored`, for this database. */
  restored: z.boolean().optional(),
})

/** The first one is the control cell. */
export const cellSettings = z
  .array(cell)
  .min(1)
  .max(CELLS_MAX)
  .refine((all) => new Set(all.map(({ name }) => name)).size === all.length, { error: 'names a cell twice' })
  .refine((all) => all.some(({ new_accounts }) => new_accounts !== false), {
    error: 'must have a cell that gets new accounts',
  })

export type CellSettings = z.infer<typeof cell>
