// Package static adds the pods of a manifest directory or URL to the node agent (L7.I) and keeps their copies in the
// API server, the mirror pods.
//
// Source reads the directory, and WebSource a URL; Manager makes the node agent run their pods, one after the other
// where two share a name, and publishes their statuses to their mirrors. The agent drives both. A mirror never affects
// its pod: deleting it changes nothing on the node.
//
// Contract: docs/spec/pod-lifecycle.md.
package static

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"carob/internal/core/nodegraph"
	"carob/internal/core/resources"
)

// Annotations of static pods (L0.63).
const (
	annotationSource = "kubernetes.io/config.source"
	annotationHash   = "kubernetes.io/config.hash"
	annotationSeen   = "kubernetes.io/config.seen"
	sourceFile       = "file"
	sourceURL        = "http"
)

// maxManifest bounds what is read of one file.
const maxManifest = 10 << 20

// decode parses a static pod from a manifest in YAML or JSON (L7.110, L7.111). Its UID is a hash of the manifest's
// content, so a changed content is another pod. complete fills in defaults and validates the pod.
func decode(text []byte, path, node string, complete func(*corev1.Pod) error, now time.Time) (*corev1.Pod, error) {
	if len(text) > maxManifest {
		return nil, fmt.Errorf("it is larger than %d bytes", maxManifest)
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("it is neither YAML nor JSON: %w", err)
	}
	return makePod(doc, origin{sourceFile, "host:" + node + "file:" + path}, node, complete, now)
}

// origin is the source of a static pod: the value of its annotation, and an input of the hash that is its UID.
type origin struct{ source, hashed string }

// makePod makes a static pod from a Pod in JSON.
func makePod(doc []byte, from origin, node string, complete func(*corev1.Pod) error,
	now time.Time) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	strict := json.NewDecoder(bytes.NewReader(doc))
	strict.DisallowUnknownFields()
	if err := strict.Decode(pod); err != nil {
		return nil, fmt.Errorf("decode the pod: %w", err)
	}
	switch {
	case pod.APIVersion != "v1" || pod.Kind != "Pod":
		return nil, fmt.Errorf("it holds apiVersion %q, kind %q instead of a v1 Pod", pod.APIVersion, pod.Kind)
	case pod.Name == "":
		return nil, errors.New("the pod has no name")
	}
	var err error
	if pod.UID, err = hashOf(pod, from); err != nil {
		return nil, err
	}
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	delete(pod.Annotations, corev1.MirrorPodAnnotationKey)
	pod.Annotations[annotationSource] = from.source
	pod.Annotations[annotationHash] = string(pod.UID)
	pod.Annotations[annotationSeen] = now.Format(time.RFC3339Nano)
	pod.Generation = 1 // as in the mirror: it never changes
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = nil, nil
	pod.Spec.NodeName = node
	if priority, ok := resources.SystemPriority(pod.Spec.PriorityClassName); ok && pod.Spec.Priority == nil {
		pod.Spec.Priority = &priority // admission sets it for the mirror only, and a shutdown ends pods in its order
	}
	if from.source == sourceFile { // upstream's web source has none (S14.13)
		pod.Spec.Tolerations = append(pod.Spec.Tolerations,
			corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if err := complete(pod); err != nil {
		return nil, fmt.Errorf("invalid pod: %w", err)
	}
	if kind := nodegraph.Needs(pod); kind != "" {
		return nil, fmt.Errorf("static pods may not reference %s", kind)
	}
	return pod, nil
}

// hashOf is a hash of 128 bits of the manifest's content and its origin.
func hashOf(pod *corev1.Pod, from origin) (types.UID, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return "", fmt.Errorf("hash the pod: %w", err)
	}
	h := fnv.New128a()
	_, _ = fmt.Fprintf(h, "%s%s", text, from.hashed)
	return types.UID(hex.EncodeToString(h.Sum(nil))), nil
}
