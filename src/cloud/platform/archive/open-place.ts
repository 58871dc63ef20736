import type { ArchivePlace } from '../../usage/archive/place.ts'
import { type S3Settings, archiveBucket } from './bucket.ts'
import { archiveDirectory } from './directory.ts'

/** @param place a directory, or `s3://bucket/prefix`. @throws CodedError CONFIG_INVALID */
export function openPlace(place: string, s3: S3Settings, stop: AbortSignal): ArchivePlace {
  return place.startsWith('s3://') ? archiveBucket(place, s3, stop) : archiveDirectory(place)
}
