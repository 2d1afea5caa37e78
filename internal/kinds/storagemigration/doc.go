// Package storagemigration is the group storagemigration.k8s.io: StorageVersionMigrations. It never acts on them.
package storagemigration
