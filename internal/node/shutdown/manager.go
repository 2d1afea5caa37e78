// Package shutdown ends the pods of the node in order when the machine goes down
// (L7.M). It holds a delay lock of systemd-logind, which announces a shutdown before it begins and waits for the lock.
//
// The node agent drives it if a shutdown grace period is configured; without one, a shutdown of the machine does not
// wait for pods.
//
// Contract: docs/spec/pod-lifecycle.md.
package shutdown

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/core/eviction"
	"carob/internal/core/podlife"
	"carob/internal/node/pods"
)

// Login are the calls of systemd-logind that this package needs.
type Login interface {
	// Delay is how long logind waits for a lock at most.
	Delay(ctx context.Context) (time.Duration, error)
	// Extend sets the longest wait to at least this duration.
	Extend(ctx context.Context, d time.Duration) error
	// Inhibit takes a lock; a shutdown waits until release is called.
	Inhibit(ctx context.Context) (release func() error, err error)
	// Down reports whether a shutdown has begun.
	Down(ctx context.Context) (bool, error)
	// Next blocks until a shutdown begins (true) or is cancelled (false).
	Next(ctx context.Context) (bool, error)
	Close() error
}

// Pods are the pods of the node.
type Pods interface {
	List() []pods.View
	ByUID(types.UID) (pods.View, bool)
	Stop(types.UID, podlife.Stop) error
	Next(types.UID) <-chan struct{}
}

// Config is what a Manager works with. All fields are required.
type Config struct {
	Steps []eviction.ShutdownStep // how long pods have, by priority
	Open  func(ctx context.Context) (Login, error)
	// Event records an event about the node; Changed causes a new report of the node's status.
	Event   func(eventType, reason, message string)
	Changed func()
}

// Manager waits for a shutdown.
//
//	watching ──shutdown──▶ down: pods end, group by group ──▶ lock released ──taken back──▶ watching
type Manager struct {
	cfg  Config
	pods Pods // of Run
	down atomic.Bool
}

// Message is the status message of pods that end at a shutdown (L7.156).
const Message = "Pod was terminated in response to imminent node shutdown."

const (
	retryFirst = time.Second
	retryMax   = time.Minute
)

// New returns a Manager; nothing happens before Run.
func New(cfg Config) *Manager { return &Manager{cfg: cfg} }

func (m *Manager) total() (total time.Duration) {
	for _, s := range m.cfg.Steps {
		total += s.Grace
	}
	return total
}

// Down reports whether the machine is shutting down.
func (m *Manager) Down() bool { return m.down.Load() }

// Run watches, and ends these pods, until ctx ends. Without a logind it tries again periodically.
func (m *Manager) Run(ctx context.Context, pods Pods) {
	m.pods = pods
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := m.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMax {
			wait = retryFirst
		}
		klog.FromContext(ctx).Error(err,
			"Shutdowns of the machine cannot be delayed: pods would end without their grace period", "retryIn", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, retryMax)
	}
}

// watch holds the lock and follows the signals of logind.
func (m *Manager) watch(ctx context.Context) error {
	login, err := m.cfg.Open(ctx)
	if err != nil {
		return fmt.Errorf("reach logind: %w", err)
	}
	defer func() { _ = login.Close() }()
	// A shutdown may have begun, or may have been cancelled, while there was no connection.
	down, err := login.Down(ctx)
	release := unlocked
	defer func() { _ = release() }()
	if err == nil && !down && !m.Down() { // during a shutdown logind gives no lock
		release, err = m.lock(ctx, login)
	}
	for ; err == nil; down, err = login.Next(ctx) {
		if down == m.Down() {
			continue
		}
		m.down.Store(down)
		m.cfg.Changed()
		if !down {
			m.cfg.Event(corev1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown cancellation")
			if release, err = m.lock(ctx, login); err != nil {
				return err
			}
			continue
		}
		m.cfg.Event(corev1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
		m.endAll(ctx)
		if err := release(); err != nil {
			return fmt.Errorf("release the lock on shutdown: %w", err)
		}
		release = unlocked
	}
	return err
}

// unlocked releases no lock.
func unlocked() error { return nil }

// lock makes shutdowns wait until release is called, for as long as all pods together have. After an error, release
// does nothing.
func (m *Manager) lock(ctx context.Context, login Login) (release func() error, err error) {
	delay, err := login.Delay(ctx)
	if total := m.total(); err == nil && delay < total {
		err = login.Extend(ctx, total)
	}
	if err != nil {
		return unlocked, err
	}
	if release, err = login.Inhibit(ctx); err != nil {
		return unlocked, err
	}
	return release, nil
}

// endAll ends all pods, one group after the other.
func (m *Manager) endAll(ctx context.Context) {
	var running []*corev1.Pod
	for _, v := range m.pods.List() {
		if v.Life == podlife.Syncing || v.Life == podlife.Terminating || v.Life == "" {
			running = append(running, v.Pod)
		}
	}
	for _, g := range eviction.ShutdownGroups(running, m.cfg.Steps) {
		began := time.Now()
		for _, pod := range g.Pods {
			grace := g.Within(pod)
			_ = m.pods.Stop(pod.UID, podlife.Stop{ // an error: it has ended
				Reason: "Terminated", Message: Message, Grace: &grace, Condition: &corev1.PodCondition{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
					Reason: corev1.PodReasonTerminationByKubelet, Message: Message,
				},
			})
		}
		left := m.await(ctx, g)
		klog.FromContext(ctx).Info("Pods were ended for a shutdown", "priority", g.Priority, "pods", len(g.Pods),
			"notEnded", left, "took", time.Since(began))
	}
}

// await returns when the pods of a group have released their resources, or the group's time is over; the result is how
// many have not.
func (m *Manager) await(ctx context.Context, g eviction.ShutdownGroup) int {
	ctx, cancel := context.WithTimeout(ctx, g.Grace)
	defer cancel()
	for i, pod := range g.Pods {
		for !m.ended(pod.UID) {
			next := m.pods.Next(pod.UID)
			if m.ended(pod.UID) {
				break
			}
			select {
			case <-next:
			case <-ctx.Done():
				return len(g.Pods) - i
			}
		}
	}
	return 0
}

func (m *Manager) ended(uid types.UID) bool {
	v, ok := m.pods.ByUID(uid)
	return !ok || (v.Life == podlife.Terminated || v.Life == podlife.Finished) && len(v.Waits) == 0
}
