package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/volume"
)

// Request is a volume that a pod requests: a persistent one with its claim, or an ephemeral one of the pod's.
type Request struct {
	Pod      *corev1.Pod
	Volume   *corev1.Volume
	Claim    *corev1.PersistentVolumeClaim // nil: an ephemeral volume
	PV       *corev1.PersistentVolume      // nil with Claim
	Block    bool
	ReadOnly bool
	// SELinux is the label with which the volume is mounted if the driver supports it (S4.74); "": none.
	SELinux string
}

// Ready is a volume as containers use it: a directory, or a block device.
type Ready struct {
	Path, Device string
	ReadOnly     bool
	GivesGroup   bool // the agent gives the files to the pod's group
	Relabel      bool // SELinux labels are to be changed file by file
}

// StepError names the failed step as upstream does (S4.64).
type StepError struct {
	Step string // such as MountVolume.SetUp
	Err  error
}

func (e *StepError) Error() string { return e.Step + " failed : " + e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

// use is one use of a volume by a pod.
type use struct {
	Request
	handle volume.Handle
	mode   storagev1.VolumeLifecycleMode
	rules  volume.DriverRules
	can    can
	driver *driver
	step   string // for errors

	fsType     string
	modes      []corev1.PersistentVolumeAccessMode
	attributes map[string]string
	flags      []string
	publish    map[string]string // the driver's publish context from the attachment
}

// name is that of the volume in paths and records.
func (u *use) name() string {
	if u.PV != nil {
		return u.PV.Name
	}
	return u.Volume.Name
}

func (u *use) key() targetKey { return targetKey{u.Pod.UID, u.name()} }

// newUse reads a request.
func newUse(req Request) (*use, error) {
	u := &use{Request: req, mode: storagev1.VolumeLifecyclePersistent, step: "MountVolume.SetUp"}
	if req.PV != nil {
		src := req.PV.Spec.CSI
		u.handle, u.fsType, u.attributes = volume.Handle{Driver: src.Driver, ID: src.VolumeHandle}, src.FSType,
			src.VolumeAttributes
		u.modes, u.flags = req.PV.Spec.AccessModes, slices.Clone(req.PV.Spec.MountOptions)
		u.ReadOnly = u.ReadOnly || src.ReadOnly
	} else {
		src := req.Volume.CSI
		u.mode = storagev1.VolumeLifecycleEphemeral
		u.handle = volume.EphemeralHandle(src.Driver, string(req.Pod.UID), req.Volume.Name)
		u.attributes, u.modes = src.VolumeAttributes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		if src.FSType != nil {
			u.fsType = *src.FSType
		}
		u.ReadOnly = u.ReadOnly || src.ReadOnly != nil && *src.ReadOnly
	}
	if req.Block {
		u.step = "MapVolume.SetUpDevice"
	}
	return u, errors.Join(checkHandle(u.handle), checkStep(u.name()), checkStep(string(req.Pod.UID)))
}

// SetUp makes a volume usable by a pod: it waits until the volume is attached, has it staged and published, and has it
// enlarged if necessary. It may be repeated. After an error Release undoes what was done.
func (m *Manager) SetUp(ctx context.Context, req Request) (Ready, error) {
	u, err := newUse(req)
	if err != nil {
		return Ready{}, err
	}
	if u.rules, err = m.rules(ctx, u.handle.Driver); err != nil {
		return Ready{}, err
	}
	if err := u.rules.Allows(u.handle.Driver, u.mode); err != nil {
		return Ready{}, &StepError{u.step, fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to check volume "+
			"lifecycle mode: %w", err)}
	}
	s, t := m.want(u)
	if err := m.awaitAttached(ctx, u); err != nil {
		return Ready{}, err
	}
	if err := m.queue.Lock(ctx, queueKey(u.handle)); err != nil {
		return Ready{}, &StepError{
			u.step,
			fmt.Errorf("the last call for volume %s of driver %s has not ended: %w", u.handle.ID,
				u.handle.Driver, err),
		}
	}
	defer m.queue.Unlock(queueKey(u.handle))
	if u.driver, err = m.registered(u.handle.Driver); err == nil {
		u.can, err = m.capabilities(ctx, u.driver)
	}
	if err != nil {
		return Ready{}, m.withoutDriver(u, err)
	}
	if err := m.label(u, s, t); err != nil {
		return Ready{}, err
	}
	if err := m.stage(ctx, u, s); err != nil {
		return Ready{}, err
	}
	m.mu.Lock()
	again := t.before
	m.mu.Unlock()
	if err := m.publish(ctx, u, t, again); err != nil {
		return Ready{}, err
	}
	ready := Ready{ReadOnly: u.ReadOnly, Relabel: u.SELinux == "" && !u.Block}
	if u.Block {
		if ready.Device, err = m.mapDevice(t); err != nil {
			return Ready{}, &StepError{"MapVolume.MapPodDevice", err}
		}
		if !again {
			m.reportMapped(u, t)
		}
	} else {
		ready.Path = m.targetPath(t)
		group := u.Pod.Spec.SecurityContext != nil && u.Pod.Spec.SecurityContext.FSGroup != nil
		ready.GivesGroup = group && !u.ReadOnly && !u.can[canGroup] && u.rules.GivesGroup(u.fsType, u.modes)
	}
	if err := m.expand(ctx, u, t, true); err != nil {
		return Ready{}, err
	}
	m.watchOver(u, t)
	return ready, nil
}

func queueKey(h volume.Handle) string { return h.Driver + "^" + h.ID }

// withoutDriver is the error of a driver that is not registered, or does not respond.
func (m *Manager) withoutDriver(u *use, err error) error {
	switch {
	case u.Block:
		return &StepError{
			u.step,
			fmt.Errorf("kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: %w", err),
		}
	case u.PV != nil:
		return &StepError{
			"MountVolume.MountDevice",
			fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create "+
				"newCsiDriverClient: %w", err),
		}
	default:
		return &StepError{u.step, fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: %w", err)}
	}
}

// want records that a pod uses a volume, so that it is not detached.
func (m *Manager) want(u *use) (*staged, *target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[u.key()]
	if t == nil {
		t = &target{targetKey: u.key(), handle: u.handle, block: u.Block}
		m.targets[t.targetKey] = t
	}
	s := m.user(t)
	s.attach = notAttachable
	if u.PV != nil && u.rules.Attach {
		s.attach = attachable
	}
	return s, t
}

// stage has the driver stage a volume (S4.52). The record is written first, also if the driver does not support
// staging.
func (m *Manager) stage(ctx context.Context, u *use, s *staged) (err error) {
	if u.PV == nil {
		return nil
	}
	step := "MountVolume.MountDevice"
	if u.Block {
		step = u.step
	}
	defer func() {
		if _, ok := errors.AsType[*StepError](err); err != nil && !ok {
			err = &StepError{step, err}
		}
	}()
	data := map[string]string{keyDriver: u.handle.Driver, keyHandle: u.handle.ID}
	if u.SELinux != "" {
		data[keySELinux] = u.SELinux
	}
	if u.Block {
		data[keySpec], data[keyNode], data[keyAttachment] = u.name(), m.cfg.Node, u.handle.AttachmentName(m.cfg.Node)
	}
	old, _, readErr := readRecord(m.stageDir(s))
	if readErr == nil && old[keySELinux] != u.SELinux { // no pod uses it with that label any more
		if err := m.unstageNow(ctx, s); err != nil {
			return fmt.Errorf("unstage a volume to mount it with another SELinux label: %w", err)
		}
		m.mu.Lock()
		s.done = false
		m.mu.Unlock()
		old = nil
	}
	if readErr != nil || !maps.Equal(old, data) {
		if err := writeRecord(m.stageDir(s), data); err != nil {
			return err
		}
	}
	m.mu.Lock()
	s.record = true
	done := s.done
	m.mu.Unlock()
	path := m.stagePath(s)
	if err := os.MkdirAll(path, permDir); err != nil {
		return fmt.Errorf("make the directory of a volume: %w", err)
	}
	if !u.can[canStage] || done {
		return nil
	}
	secrets, err := m.secret(ctx, u.PV.Spec.CSI.NodeStageSecretRef, "NodeStageSecretRef")
	if err != nil {
		return err
	}
	start := time.Now()
	_, err = call(ctx, m, u.driver, "NodeStageVolume", u.driver.node.NodeStageVolume, &csiapi.NodeStageVolumeRequest{
		VolumeId: u.handle.ID, PublishContext: u.publish, StagingTargetPath: path, Secrets: secrets,
		VolumeContext: u.attributes, VolumeCapability: u.capability()})
	m.cfg.Meter.Operation(plugin(u.handle), "volume_mount", err, time.Since(start))
	if err != nil {
		m.stageFailed(s, u, err)
		return err
	}
	m.mu.Lock()
	s.done = true
	m.mu.Unlock()
	return nil
}

func (m *Manager) usedByOthers(s *staged, u *use) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range s.users {
		if k != u.key() && m.targets[k] != nil && m.targets[k].before {
			return true
		}
	}
	return false
}

// stageFailed removes what was made for a volume that the driver certainly did not stage.
func (m *Manager) stageFailed(s *staged, u *use, err error) {
	if uncertain(err) || m.usedByOthers(s, u) {
		return
	}
	m.mu.Lock()
	t := m.targets[u.key()]
	before := t != nil && t.before
	m.mu.Unlock()
	if before {
		return
	}
	if err := errors.Join(drop(m.stagePath(s)), dropRecord(m.stageDir(s))); err != nil {
		m.cfg.Logger.Info(
			"What was made for a volume that was not staged stays for now",
			"volume",
			u.handle.ID,
			"err",
			err,
		)
		return
	}
	m.mu.Lock()
	s.record = false
	m.mu.Unlock()
}

// capability is how the pod will use the volume.
func (u *use) capability() *csiapi.VolumeCapability {
	group := ""
	if g := u.Pod.Spec.SecurityContext; g != nil && g.FSGroup != nil && u.can[canGroup] {
		group = strconv.FormatInt(*g.FSGroup, 10)
	}
	return capability(u.modes, u.can, u.Block, u.fsType, u.flags, group)
}

// publish has the driver publish a volume for a pod (S4.53). again means that it is, or may be,
// published already: then an error undoes nothing (S4.23, S4.98).
func (m *Manager) publish(ctx context.Context, u *use, t *target, again bool) (err error) {
	defer func() {
		if _, ok := errors.AsType[*StepError](err); err != nil && !ok {
			err = &StepError{u.step, err}
		}
	}()
	req := &csiapi.NodePublishVolumeRequest{
		VolumeId:         u.handle.ID,
		PublishContext:   u.publish,
		TargetPath:       m.targetPath(t),
		VolumeCapability: u.capability(),
		Readonly:         u.ReadOnly,
		VolumeContext:    maps.Clone(u.attributes),
	}
	if u.PV != nil && u.can[canStage] {
		req.StagingTargetPath = m.stagePath(m.stagedOf(u.handle))
	}
	ref := (*corev1.SecretReference)(nil)
	if u.PV != nil {
		ref = u.PV.Spec.CSI.NodePublishSecretRef
	} else if own := u.Volume.CSI.NodePublishSecretRef; own != nil {
		ref = &corev1.SecretReference{Namespace: u.Pod.Namespace, Name: own.Name}
	}
	if req.Secrets, err = m.secret(ctx, ref, "NodePublishSecretRef"); err != nil {
		return err
	}
	if u.rules.PodInfo {
		req.VolumeContext = merged(req.VolumeContext, volume.PodInfo(u.Pod, u.mode))
	}
	tokens, err := m.tokens(ctx, u, t)
	if err != nil {
		return err
	}
	if u.rules.TokensInSecrets {
		req.Secrets = merged(req.Secrets, tokens)
	} else {
		req.VolumeContext = merged(req.VolumeContext, tokens)
	}
	if err := m.prepareTarget(u, t); err != nil {
		return err
	}
	start := time.Now()
	_, err = call(ctx, m, u.driver, "NodePublishVolume", u.driver.node.NodePublishVolume, req)
	operation := "volume_mount"
	if u.Block {
		operation = "map_volume"
	}
	m.cfg.Meter.Operation(plugin(u.handle), operation, err, time.Since(start))
	m.mu.Lock()
	t.before = t.before || err == nil
	m.mu.Unlock()
	if err != nil && !again && !uncertain(err) {
		m.publishFailed(t)
	}
	return err
}

func (m *Manager) stagedOf(h volume.Handle) *staged {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.volumes[h]
}

func merged(a, b map[string]string) map[string]string {
	if len(b) == 0 {
		return a
	}
	if a == nil {
		a = map[string]string{}
	}
	maps.Copy(a, b)
	return a
}

// prepareTarget makes the directory that the driver publishes in, and the record of it (S4.67).
func (m *Manager) prepareTarget(u *use, t *target) error {
	m.mu.Lock()
	had := t.record
	t.record, t.label = true, u.SELinux
	m.mu.Unlock()
	if t.block {
		// The link is the record: it comes before the driver is called.
		if err := errors.Join(os.MkdirAll(filepath.Dir(m.targetPath(t)), permDir), os.MkdirAll(m.targetDir(t),
			permDir)); err != nil {
			return fmt.Errorf("make the directories of a block volume: %w", err)
		}
		link := filepath.Join(m.targetDir(t), t.name)
		if old, err := os.Readlink(link); err == nil && old == m.targetPath(t) {
			return nil
		}
		if err := os.Symlink(m.targetPath(t), link); err != nil {
			return fmt.Errorf("link a block volume: %w", err)
		}
		return nil
	}
	if had {
		if data, h, err := readRecord(m.targetDir(t)); err == nil && h == u.handle && data[keySELinux] == u.SELinux {
			return nil
		}
	}
	data := map[string]string{keySpec: t.name, keyHandle: u.handle.ID, keyDriver: u.handle.Driver, keyNode: m.cfg.Node,
		keyMode: string(u.mode), keyAttachment: u.handle.AttachmentName(m.cfg.Node)}
	if u.SELinux != "" {
		data[keySELinux] = u.SELinux
	}
	return writeRecord(m.targetDir(t), data)
}

// publishFailed removes what was made for a volume that the driver certainly did not publish.
func (m *Manager) publishFailed(t *target) {
	if err := m.dropTarget(t); err != nil {
		m.cfg.Logger.Info(
			"What was made for a volume that was not published stays for now",
			"volume",
			t.name,
			"pod",
			t.pod,
			"err",
			err,
		)
		return
	}
	m.mu.Lock()
	t.record = false
	m.mu.Unlock()
}

// secret reads the Secret for a volume's driver; nil without a reference.
func (m *Manager) secret(ctx context.Context, ref *corev1.SecretReference, field string) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := m.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, &transient{fmt.Errorf("fetching %s %s/%s failed: %w", field, ref.Namespace, ref.Name, err)}
	}
	data := map[string]string{}
	for k, v := range s.Data {
		data[k] = string(v)
	}
	return data, nil
}

// issued is a token for one audience.
type issued struct {
	status authenticationv1.TokenRequestStatus
	renew  time.Time
}

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// tokens are the service account tokens that a driver requires (S4.21); nil: none. Each is used
// until most of its lifetime is over.
func (m *Manager) tokens(ctx context.Context, u *use, t *target) (map[string]string, error) {
	if len(u.rules.Tokens) == 0 {
		return nil, nil
	}
	all := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range u.rules.Tokens {
		m.mu.Lock()
		have, ok := t.tokens[r.Audience]
		m.mu.Unlock()
		if !ok || !time.Now().Before(have.renew) {
			var err error
			if have, err = m.token(ctx, u.Pod, r); err != nil {
				return nil, &transient{fmt.Errorf("get a service account token for the driver: %w", err)}
			}
			m.mu.Lock()
			if t.tokens == nil {
				t.tokens = map[string]issued{}
			}
			t.tokens[r.Audience] = have
			m.mu.Unlock()
		}
		all[r.Audience] = have.status
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil, &transient{fmt.Errorf("encode service account tokens: %w", err)}
	}
	return map[string]string{tokensKey: string(text)}, nil
}

func (m *Manager) token(ctx context.Context, pod *corev1.Pod, r storagev1.TokenRequest) (issued, error) {
	req := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: r.ExpirationSeconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1",
				Kind:       "Pod",
				Name:       pod.Name,
				UID:        pod.UID,
			}},
	}
	if r.Audience != "" {
		req.Spec.Audiences = []string{r.Audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	now := time.Now()
	answer, err := m.cfg.Tokens.Token(ctx, pod.Namespace, account, req)
	if err != nil {
		return issued{}, err
	}
	life := answer.Status.ExpirationTimestamp.Sub(now)
	// By the wall clock, which judges it: a monotonic reading stops while the machine is suspended.
	return issued{answer.Status, now.Round(0).Add(min(life*8/10, 24*time.Hour))}, nil
}
