// Package vpa decides what a VerticalPodAutoscaler does: it collects the usage of containers in
// histograms whose weights decay, recommends requests from them, says which pods get other
// requests and how, and what a pod gets when it is created. controllers/vpa and the API server's
// admission drive it; it must never look at a clock or at the API.
//
// Contract: docs/spec/workloads.md W9.
package vpa
