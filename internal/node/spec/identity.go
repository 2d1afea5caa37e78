package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"carob/internal/core/podlife"
	"carob/internal/core/resources"
)

// Labels and annotations in the runtime by which an agent recognizes its own sandboxes and containers after a restart
// (L3.164).
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop                  = "io.kubernetes.container.preStopHandler"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationDeletionGrace            = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationTerminationGrace         = "io.kubernetes.pod.terminationGracePeriod"
	// AnnotationRequests is for sandboxes: what the pod occupies on the node, as JSON.
	AnnotationRequests = "carob.dev/requests"
)

// Find returns the container with that name (regular, init or ephemeral) and the field path for
// its events (L3.95), or nil.
func Find(pod *corev1.Pod, name string) (c *corev1.Container, fieldPath string) {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i], "spec.containers{" + name + "}"
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i], "spec.initContainers{" + name + "}"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &c, "spec.ephemeralContainers{" + name + "}"
		}
	}
	return nil, ""
}

// Hash of name and image decides whether a container's definition changed (L3.66).
func Hash(c *corev1.Container) string { return podlife.DefinitionHash(c.Name, c.Image) }

// PodLogDir is the log directory of a pod below the log root (L3.155).
func PodLogDir(root string, pod *corev1.Pod) string {
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// ContainerLog is the log of one instance of a container, relative to the pod's log directory.
func ContainerLog(container string, attempt int) string {
	return filepath.Join(container, strconv.Itoa(attempt)+".log")
}

// podRef is how messages name a pod: <name>_<namespace>(<uid>).
func podRef(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

func podLabels(pod *corev1.Pod) map[string]string {
	return map[string]string{
		LabelPodName:      pod.Name,
		LabelPodNamespace: pod.Namespace,
		LabelPodUID:       string(pod.UID),
	}
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	labels := podLabels(pod)
	labels[LabelContainerName] = c.Name
	return labels
}

func containerAnnotations(pod *corev1.Pod, c *corev1.Container, attempt int) (map[string]string, error) {
	a := map[string]string{
		AnnotationHash:                     Hash(c),
		AnnotationRestartCount:             strconv.Itoa(attempt),
		AnnotationTerminationMessagePath:   c.TerminationMessagePath,
		AnnotationTerminationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		a[AnnotationDeletionGrace] = strconv.FormatInt(*s, 10)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		a[AnnotationTerminationGrace] = strconv.FormatInt(*s, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		text, err := json.Marshal(c.Lifecycle.PreStop)
		if err != nil {
			return nil, fmt.Errorf("encoding the preStop handler of container %q: %w", c.Name, err)
		}
		a[AnnotationPreStop] = string(text)
	}
	if len(c.Ports) > 0 {
		text, err := json.Marshal(c.Ports)
		if err != nil {
			return nil, fmt.Errorf("encoding the ports of container %q: %w", c.Name, err)
		}
		a[AnnotationPorts] = string(text)
	}
	return a, nil
}

// Restored is the content of the labels and annotations of a container in the runtime (L3.164).
// Fields that are absent or unreadable have their zero value.
type Restored struct {
	PodName, PodNamespace, PodUID, Name string
	RestartCount                        int
	Hash                                string
	TerminationMessagePath              string
	TerminationMessagePolicy            corev1.TerminationMessagePolicy
	PreStop                             *corev1.LifecycleHandler
	DeletionGrace, TerminationGrace     *int64 // seconds
	Requests                            corev1.ResourceList
}

// RequestsText is the value of AnnotationRequests.
func RequestsText(pod *corev1.Pod) (string, error) {
	text, err := json.Marshal(resources.Requests(pod))
	if err != nil {
		return "", fmt.Errorf("encoding the requests of pod %s: %w", podRef(pod), err)
	}
	return string(text), nil
}

// Restore reads labels and annotations that containerConfig wrote.
func Restore(labels, annotations map[string]string) Restored {
	r := Restored{
		PodName:                  labels[LabelPodName],
		PodNamespace:             labels[LabelPodNamespace],
		PodUID:                   labels[LabelPodUID],
		Name:                     labels[LabelContainerName],
		Hash:                     annotations[AnnotationHash],
		TerminationMessagePath:   annotations[AnnotationTerminationMessagePath],
		TerminationMessagePolicy: corev1.TerminationMessagePolicy(annotations[AnnotationTerminationMessagePolicy]),
		DeletionGrace:            seconds(annotations[AnnotationDeletionGrace]),
		TerminationGrace:         seconds(annotations[AnnotationTerminationGrace]),
	}
	if n, err := strconv.Atoi(annotations[AnnotationRestartCount]); err == nil && n >= 0 {
		r.RestartCount = n
	}
	if text := annotations[AnnotationPreStop]; text != "" {
		var h corev1.LifecycleHandler
		if json.Unmarshal([]byte(text), &h) == nil {
			r.PreStop = &h
		}
	}
	if text := annotations[AnnotationRequests]; text != "" {
		var requests corev1.ResourceList
		if json.Unmarshal([]byte(text), &requests) == nil {
			maps.DeleteFunc(requests, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.Sign() <= 0 })
			r.Requests = requests
		}
	}
	return r
}

func seconds(text string) *int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}
