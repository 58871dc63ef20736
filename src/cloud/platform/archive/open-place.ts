import { CodedError } from '../../../protocol/errors.ts'
import type { ArchivePlace } from '../../usage/archive/place.ts'
import { type S3Settings, archiveBucket } from './bucket.ts'
import { archiveDirectory } from './directory.ts'

/** @param place a directory, or `s3://bucket/prefix`. @throws CodedError CONFIG_INVALID */
export function openPlace(place: string, s3: S3Settings, stop: AbortSignal): ArchivePlace {
  if (place.startsWith('s3://')) return archiveBucket(place, s3, stop)
  const [scheme] = /^[a-z][a-z\d+.-]*:\//i.exec(place) ?? []
  if (scheme === undefined) return archiveDirectory(place)
  // As a path, it would become a directory of this name, and receive the records.
  throw new CodedError('CONFIG_INVALID', `Cannot archive to ${scheme}. Use a directory or s3://bucket/prefix.`)
}
