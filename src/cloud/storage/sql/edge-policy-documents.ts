/** Keeps the newest document of each instance. */
import type { Sql } from './sql.ts'

export function policyDocumentReader({ db }: Sql) {
  return {
    async get(instanceId: string, revision: number): Promise<string | undefined> {
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

export function policyDocumentTransaction(sql: Sql) {
  const { db } = sql
  return {
    ...policyDocumentReader(sql),
    async removeAll(): Promise<void> {
      await db.deleteFrom('policy_documents').execute()
    },
    /** Keeps a revision's first document and deletes older revisions. */
    async save(instanceId: string, revision: number, document: string): Promise<void> {
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
