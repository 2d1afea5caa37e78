// Package vpa decides about a VerticalPodAutoscaler: it collects the usage of containers in
// histograms whose weights decay, recommends requests from them, and decides which pods are updated
// and how, and the requests of new pods. controllers/vpa and the API server's admission drive it;
// it must never read a clock or the API.
//
// Contract: docs/spec/workloads.md W9.
package vpa
