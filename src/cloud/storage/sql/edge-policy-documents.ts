/** Keeps the newest document of each instance. */
import type { EdgeReader, EdgeTransaction } from '../device-store.ts'
import type { Sql } from './sql.ts'

export function policyDocumentReader({ db }: Sql): EdgeReader['policyDocuments'] {
  return {
    async get(instanceId, revision) {
      const row = await db
        .selectFrom('policy_documents')
        .select('document')
        .where('instance_id', '=', instanceId)
        .where('revision', '=', BigInt(revision))
        .executeTakeFirst()
      return row?.document
    },
  }
}

export function policyDocumentTransaction(sql: Sql): EdgeTransaction['policyDocuments'] {
  const { db } = sql
  return {
    ...policyDocumentReader(sql),
    async removeAll() {
      await db.deleteFrom('policy_documents').execute()
    },
    async save(instanceId, revision, document) {
      await db
        .deleteFrom('policy_documents')
        .where('instance_id', '=', instanceId)
        .where('revision', '<', BigInt(revision))
        .execute()
      await db
        .insertInto('policy_documents')
        .values({ instance_id: instanceId, revision: BigInt(revision), document })
        .onConflict((conflict) => conflict.columns(['instance_id', 'revision']).doNothing())
        .execute()
    },
  }
}
