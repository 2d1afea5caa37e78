// Package batch is the group batch: Jobs and CronJobs (docs/spec/workloads.md). It never acts on them: the
// controllers do.
package batch
