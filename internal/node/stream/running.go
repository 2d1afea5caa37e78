package stream

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runningPods responds with the pods that have running containers, with few of their fields (S12.8).
func (s *Server) runningPods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
	for _, pod := range s.cfg.Pods.List() {
		out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}}
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
			pod.Status.EphemeralContainerStatuses) {
			if c.State.Running != nil {
				out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if out.Spec.Containers != nil {
			list.Items = append(list.Items, out)
		}
	}
	writeJSON(w, list)
}

// statusz serves the version and the start time of the process, in a form for people.
func (s *Server) statusz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	up := time.Since(s.started)
	_, _ = fmt.Fprintf(w, "kubelet statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting "+
		"compatibility guarantees and is for debugging purposes only.\n\nStarted: %s\nUp: %s\nGo version: %s\n"+
		"Binary version: %s\nPaths: /configz /flagz /healthz /metrics\n", s.started.UTC().Format(time.RFC1123),
		up.Truncate(time.Second), runtime.Version(), s.cfg.Version)
}
