// Package eviction keeps the node from running out of memory, disk, and process IDs (L7.L): it measures, core/eviction
// decides, and it ends pods in the same way as all other pods, and removes unused images (L7.133).
//
// The node agent drives it: Look at each renewal of the node's lease, Run for what takes time. Pods are not measured
// while the node has enough of everything and no pod has a limit on local storage.
//
// Contract: docs/spec/pod-lifecycle.md.
package eviction

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/eviction"
	"carob/internal/core/podlife"
	"carob/internal/node/pods"
)

// Runtime are the calls of a container runtime that measuring needs.
type Runtime interface {
	ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error)
	ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error)
	ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error)
	ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error)
	RemoveImage(context.Context, *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error)
	ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error)
}

// Pods are the pods of the node.
type Pods interface {
	List() []pods.View
	ByUID(types.UID) (pods.View, bool)
	Stop(types.UID, podlife.Stop) error
	Next(types.UID) <-chan struct{}
}

// Config is what a Manager works with. All fields but Measure are required.
type Config struct {
	Rules   eviction.Config
	Images  eviction.ImagePolicy
	Runtime Runtime
	Pods    Pods
	Root    string // on the file system that counts as the node's
	// LogDir and VolumeDir return the directory of a pod's container logs, and that of one of its emptyDirs.
	LogDir    func(pod *corev1.Pod) string
	VolumeDir func(uid types.UID, volume string) string
	// PodDir returns the directory of a pod's files that the agent makes and its containers write: the hosts file,
	// termination messages.
	PodDir func(uid types.UID) string
	// PodEvent and NodeEvent record events; they must not block.
	PodEvent  func(pod *corev1.Pod, e podlife.Event, annotations map[string]string)
	NodeEvent func(eventType, reason, message string)
	// Evicted is called with the signal for which a pod was evicted; nil: not counted.
	Evicted func(signal string)
	// Collected is called with the reason, space or age, for which an image was removed; nil: not counted.
	Collected func(reason string)
	// Again causes a call of Look soon; it must not block.
	Again func()
	// Reclaim wakes pods that ended so that they check Shortage; it must not block.
	Reclaim  func()
	Shortage *Shortage // set by Look
	// Measure reads the available amount of every resource; imageDir is empty while it is
	// unknown. Nil: the machine is read.
	Measure func(root, imageDir string) ([]eviction.Observation, error)
}

// Manager evicts. Look and Run may be called from different goroutines.
//
//	Look ──something is short, a pod has limits, images are due──▶ Run: images, limits, one pod ──▶ Again
type Manager struct {
	cfg  Config
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	state    eviction.State
	last     []eviction.Observation
	due      []eviction.Threshold
	imageDir string    // on the file system of images; empty: not known yet
	split    bool      // images have a file system of their own
	imagesAt time.Time // next check of the images
	imagesOn bool      // that check is due

	images   imageUse           // of Run only
	limitsAt time.Time          // of Run only: next check of local storage
	hurried  map[types.UID]bool // of Run only: deleted pods that were evicted so that they end sooner
}

const (
	imageDelay  = 10 * time.Second // not during the start
	imagePeriod = 5 * time.Minute  // L0.41
	cleanupWait = 30 * time.Second // for what an evicted pod held (L7.147)
	reclaimWait = 2 * time.Second  // for containers to be removed
	callTimeout = 2 * time.Minute
	limitShare  = 20 // measuring local storage takes at most a 20th of the time
)

// New returns a Manager; nothing is measured before Look.
func New(cfg Config) *Manager {
	if cfg.Measure == nil {
		cfg.Measure = measure
	}
	return &Manager{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Look measures the node and returns its pressures. It is quick; slow work is left to Run.
func (m *Manager) Look(ctx context.Context, now time.Time) []eviction.Pressure {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, err := m.cfg.Measure(m.cfg.Root, m.imageDir)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot measure the free resources of the node")
		all = m.last
	}
	var v eviction.Verdict
	m.state, v = eviction.Look(m.state, m.cfg.Rules, all, now)
	m.last, m.due = all, v.Due
	if !slices.ContainsFunc(m.due, diskShort) {
		m.cfg.Shortage.disk.Store(false)
	}
	if m.imagesAt.IsZero() {
		m.imagesAt = now.Add(imageDelay)
	}
	if m.imagesOn = m.imagesOn || !now.Before(m.imagesAt) || m.imageNeed() > 0; m.imagesOn {
		m.imagesAt = now.Add(imagePeriod)
	}
	if len(m.due) > 0 || m.imagesOn || m.limited() {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return v.Pressures
}

// imageDisk is the disk of the images when it was last measured; nil: never.
func (m *Manager) imageDisk() *eviction.Observation {
	for i := range m.last {
		if m.last[i].Signal == eviction.ImageFsAvailable {
			return &m.last[i]
		}
	}
	return nil
}

// imageNeed is how many bytes of images must be removed.
func (m *Manager) imageNeed() int64 {
	if o := m.imageDisk(); o != nil {
		return eviction.ImageNeed(m.cfg.Images, o.Available, o.Capacity)
	}
	return 0
}

// limited reports whether a pod has a limit on local storage.
func (m *Manager) limited() bool {
	for _, v := range m.cfg.Pods.List() {
		if runs(v) && eviction.HasLocalLimit(v.Pod) {
			return true
		}
	}
	return false
}

// runs reports whether a pod may be evicted: it has neither ended nor is it ending.
func runs(v pods.View) bool {
	return v.Life == podlife.Syncing && v.Pod.DeletionTimestamp == nil && v.Status.Phase != corev1.PodSucceeded &&
		v.Status.Phase != corev1.PodFailed
}

// Run does the work that Look has found necessary, until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		m.act(ctx)
	}
}

// act is one round: it removes surplus images, evicts pods over their limits, then evicts one pod for the first
// threshold (L7.147), or, if none can be evicted for it, frees what it can for the next pressure. If memory or
// processes are short, they come first: containers with millions of files can make the measurement of their local
// storage last for minutes.
func (m *Manager) act(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	m.mu.Lock()
	disk, images, due, all, split := m.imageDisk(), m.imagesOn, m.due, m.last, m.split
	m.imagesOn = false
	m.mu.Unlock()
	tried := map[corev1.NodeConditionType]bool{}
	if len(due) > 0 && !diskShort(due[0]) {
		tried[due[0].Signal.Condition()] = true
		if m.relieve(ctx, due[0], all, split) {
			m.mu.Lock()
			m.imagesOn = m.imagesOn || images // the next round checks them
			m.mu.Unlock()
			m.again()
			return
		}
	}
	if images {
		m.collectImages(ctx, disk)
	}
	if m.evictOverLimit(ctx) {
		return
	}
	for _, t := range due {
		if tried[t.Signal.Condition()] {
			continue
		}
		tried[t.Signal.Condition()] = true
		if m.relieve(ctx, t, all, split) {
			m.again()
			return
		}
	}
}

// relieve frees what is due for a threshold, and evicts a pod if that is not enough. It reports whether the node must
// be measured again.
func (m *Manager) relieve(ctx context.Context, t eviction.Threshold, all []eviction.Observation, split bool) bool {
	// L10.73
	m.cfg.NodeEvent(corev1.EventTypeWarning, "EvictionThresholdMet",
		fmt.Sprintf("Attempting to reclaim %s", t.Signal.Resource()))
	if diskShort(t) {
		m.reclaim(ctx) // first: afterwards the images of these containers are unused
		m.removeUnused(ctx)
		if now, err := m.cfg.Measure(m.cfg.Root, m.imageDirectory()); err == nil {
			if all = now; !eviction.Hit(t, all, true) {
				return true // that was enough
			}
		}
	}
	usages, err := m.usages(ctx, m.evictable(time.Now()), t.Signal)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Measuring pods failed, none is evicted now", "short", t.Signal)
		return false
	}
	for _, u := range eviction.Rank(t.Signal, usages, split) {
		n := eviction.Explain(t, all, u)
		condition := &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: n.Message,
		}
		if m.evict(ctx, u.Pod, string(t.Signal), n, condition, eviction.Grace(t, m.cfg.Rules.MaxGrace)) {
			if u.Pod.DeletionTimestamp != nil {
				m.hurried[u.Pod.UID] = true
			}
			m.await(ctx, u.Pod.UID)
			return true
		}
	}
	klog.FromContext(ctx).Info("The node is under pressure, and no pod can be evicted", "short", t.Signal)
	return false
}

// evictable are the pods that may be evicted for a threshold: those that run, and those that were deleted and have
// still long to end. These are evicted once, to end sooner.
func (m *Manager) evictable(now time.Time) []*corev1.Pod {
	var list []*corev1.Pod
	hurried := map[types.UID]bool{}
	for _, v := range m.cfg.Pods.List() {
		uid := v.Pod.UID
		if m.hurried[uid] {
			hurried[uid] = true
		} else if runs(v) || endsLate(v, now) {
			list = append(list, v.Pod)
		}
	}
	m.hurried = hurried // those that are gone are forgotten
	return list
}

// endsLate reports whether a pod that was deleted still has a long time to end.
func endsLate(v pods.View, now time.Time) bool {
	return (v.Life == podlife.Syncing || v.Life == podlife.Terminating) && v.Pod.DeletionTimestamp != nil &&
		v.Pod.DeletionTimestamp.After(now.Add(cleanupWait)) && v.Status.Phase != corev1.PodSucceeded &&
		v.Status.Phase != corev1.PodFailed
}

func diskShort(t eviction.Threshold) bool { return t.Signal.Condition() == corev1.NodeDiskPressure }

// Shortage is what other parts need of the node's pressures.
type Shortage struct{ disk atomic.Bool }

// Disk reports whether the containers of pods that ended must be removed.
func (s *Shortage) Disk() bool { return s.disk.Load() }

// reclaim has dead containers removed, once per shortage, and waits for that.
func (m *Manager) reclaim(ctx context.Context) {
	if m.cfg.Shortage.disk.Swap(true) {
		return
	}
	m.cfg.Reclaim()
	select {
	case <-time.After(reclaimWait):
	case <-ctx.Done():
	}
}

// evictOverLimit evicts the pods that exceed a limit on local storage (L7.152).
func (m *Manager) evictOverLimit(ctx context.Context) bool {
	var candidates []*corev1.Pod
	for _, v := range m.cfg.Pods.List() {
		if runs(v) && eviction.HasLocalLimit(v.Pod) {
			candidates = append(candidates, v.Pod)
		}
	}
	began := time.Now()
	if len(candidates) == 0 || began.Before(m.limitsAt) {
		return false
	}
	usages, err := m.usages(ctx, candidates, eviction.NodeFsAvailable)
	now := time.Now()
	m.limitsAt = now.Add(limitShare * now.Sub(began))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Measuring the local storage of pods failed")
		return false
	}
	evicted := false
	for _, u := range usages {
		message, limit := eviction.OverLocalLimit(u)
		if message != "" && m.evict(ctx, u.Pod, limit, eviction.Message{Message: message}, nil, time.Second) {
			evicted = true
		}
	}
	return evicted
}

func (m *Manager) evict(ctx context.Context, pod *corev1.Pod, signal string, n eviction.Message,
	condition *corev1.PodCondition, grace time.Duration) bool {
	if m.cfg.Pods.Stop(pod.UID,
		podlife.Stop{Reason: "Evicted", Message: n.Message, Condition: condition, Grace: &grace}) != nil {
		return false // it ended in this moment
	}
	klog.FromContext(ctx).Info("A pod is evicted", "pod", klog.KObj(pod), "uid", pod.UID, "why", n.Message)
	if m.cfg.Evicted != nil {
		m.cfg.Evicted(signal)
	}
	m.cfg.PodEvent(pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: "Evicted", Message: n.Message},
		n.Annotations)
	return true
}

// await returns when the pod uses no resources any more, or after a timeout.
func (m *Manager) await(ctx context.Context, uid types.UID) {
	ctx, cancel := context.WithTimeout(ctx, cleanupWait)
	defer cancel()
	for {
		next := m.cfg.Pods.Next(uid)
		v, ok := m.cfg.Pods.ByUID(uid)
		if !ok || (v.Life == podlife.Terminated || v.Life == podlife.Finished) && len(v.Waits) == 0 {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// again causes a new measurement. Measurements made during the round are too old to act on: a pod has ended since.
func (m *Manager) again() {
	m.mu.Lock()
	m.due = nil
	select {
	case <-m.wake:
	default:
	}
	m.mu.Unlock()
	m.cfg.Again()
}

func (m *Manager) imageDirectory() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.imageDir
}
