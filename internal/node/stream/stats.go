package stream

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/node/spec"
	"carob/internal/node/summary"
)

// pods serves all pods of this node.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.cfg.Pods.List() {
		list.Items = append(list.Items, *p)
	}
	writeJSON(w, list)
}

func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client may have gone
}

// samples calls the runtime once for all containers.
func (s *Server) samples(req *http.Request) ([]summary.Sample, error) {
	res, err := s.cfg.Runtime.ListContainerStats(req.Context(), &cri.ListContainerStatsRequest{})
	if err != nil {
		return nil, err
	}
	return s.join(res.Stats), nil
}

// join finds the pods of containers; the list is in the order of their names.
func (s *Server) join(stats []*cri.ContainerStats) []summary.Sample {
	byUID := make(map[string]*corev1.Pod)
	for _, p := range s.cfg.Pods.List() {
		byUID[string(p.UID)] = p
	}
	var list []summary.Sample
	for _, st := range stats {
		labels := st.GetAttributes().GetLabels()
		pod := byUID[labels[spec.LabelPodUID]]
		if pod == nil {
			continue
		}
		name := labels[spec.LabelContainerName]
		running := containerStatus(pod, name)
		if running == nil || running.State.Running == nil ||
			!strings.HasSuffix(running.ContainerID, "://"+st.GetAttributes().GetId()) {
			continue // an instance that ended
		}
		list = append(list, summary.Sample{Pod: pod, Container: name, Started: running.State.Running.StartedAt.Time,
			Stats: st})
	}
	slices.SortFunc(list, func(a, b summary.Sample) int {
		if c := strings.Compare(a.Pod.Namespace+"/"+a.Pod.Name, b.Pod.Namespace+"/"+b.Pod.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Container, b.Container)
	})
	return list
}

// summary serves the statistics of the machine and its pods; with only_cpu_and_memory, nothing else.
func (s *Server) summary(w http.ResponseWriter, req *http.Request) {
	only := false
	if v := req.FormValue("only_cpu_and_memory"); v != "" {
		var err error
		if only, err = strconv.ParseBool(v); err != nil {
			http.Error(w, fmt.Sprintf("invalid value %q of parameter only_cpu_and_memory", v), http.StatusBadRequest)
			return
		}
	}
	whole := s.sandboxStats(req)
	samples, all := s.inSandboxes(whole)
	if !all {
		var err error
		if samples, err = s.samples(req); err != nil {
			http.Error(w, err.Error(), httpCode(err))
			return
		}
	}
	if only {
		writeJSON(w, s.summaries.Brief(samples, whole))
		return
	}
	writeJSON(w, s.summaries.Whole(req.Context(), samples, whole))
}

// inSandboxes are the samples that the statistics of whole pods have; all is whether these are all containers that run.
func (s *Server) inSandboxes(whole map[string]*cri.PodSandboxStats) (samples []summary.Sample, all bool) {
	var stats []*cri.ContainerStats
	for _, st := range whole { // any order: join sorts
		stats = append(stats, st.GetLinux().GetContainers()...)
	}
	samples = s.join(stats)
	running := 0
	for _, pod := range s.cfg.Pods.List() {
		for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
			pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				if list[i].State.Running != nil {
					running++
				}
			}
		}
	}
	return samples, len(samples) >= running
}

// sandboxStats are the statistics of whole pods by UID, from runtimes that provide them.
func (s *Server) sandboxStats(req *http.Request) map[string]*cri.PodSandboxStats {
	res, err := s.cfg.Runtime.ListPodSandboxStats(req.Context(), &cri.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil
	}
	return sandboxesByUID(res.Stats)
}

func sandboxesByUID(stats []*cri.PodSandboxStats) map[string]*cri.PodSandboxStats {
	byUID := make(map[string]*cri.PodSandboxStats, len(stats))
	for _, st := range stats {
		byUID[st.GetAttributes().GetMetadata().GetUid()] = st
	}
	return byUID
}

// resourceMetrics are the metrics that metrics-server reads.
func (s *Server) resourceMetrics(w http.ResponseWriter, req *http.Request) {
	samples, err := s.samples(req)
	if err != nil {
		http.Error(w, err.Error(), httpCode(err))
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	type total struct{ cpu, memory uint64 }
	pods := make(map[string]*total)
	family := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	labels := func(m summary.Sample) string {
		return fmt.Sprintf("container=%q,namespace=%q,pod=%q", m.Container, m.Pod.Namespace, m.Pod.Name)
	}
	podLabels := func(m summary.Sample) string {
		return fmt.Sprintf("namespace=%q,pod=%q", m.Pod.Namespace, m.Pod.Name)
	}
	for _, m := range samples {
		t := pods[podLabels(m)]
		if t == nil {
			t = &total{}
			pods[podLabels(m)] = t
		}
		t.cpu += m.Stats.GetCpu().GetUsageCoreNanoSeconds().GetValue()
		t.memory += m.Stats.GetMemory().GetWorkingSetBytes().GetValue()
	}
	family("container_cpu_usage_seconds_total", "counter",
		"Cumulative cpu time consumed by the container in core-seconds")
	for _, m := range samples {
		if c := m.Stats.Cpu; c.GetUsageCoreNanoSeconds() != nil {
			fmt.Fprintf(w, "container_cpu_usage_seconds_total{%s} %g %d\n", labels(m),
				float64(c.UsageCoreNanoSeconds.Value)/1e9, c.Timestamp/1e6)
		}
	}
	family("container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes")
	for _, m := range samples {
		if c := m.Stats.Memory; c.GetWorkingSetBytes() != nil {
			fmt.Fprintf(w, "container_memory_working_set_bytes{%s} %d %d\n", labels(m), c.WorkingSetBytes.Value,
				c.Timestamp/1e6)
		}
	}
	node := summary.MeasureNode(s.cfg.NodeName)
	if c := node.CPU; c != nil {
		family("node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds")
		fmt.Fprintf(w, "node_cpu_usage_seconds_total %g %d\n", float64(*c.UsageCoreNanoSeconds)/1e9, c.Time.UnixMilli())
	}
	if m := node.Memory; m != nil {
		family("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes")
		fmt.Fprintf(w, "node_memory_working_set_bytes %d %d\n", *m.WorkingSetBytes, m.Time.UnixMilli())
	}
	family("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds")
	for _, m := range samples {
		fmt.Fprintf(w, "container_start_time_seconds{%s} %d\n", labels(m), m.Started.Unix())
	}
	family("pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds")
	for _, l := range slices.Sorted(maps.Keys(pods)) {
		fmt.Fprintf(w, "pod_cpu_usage_seconds_total{%s} %g\n", l, float64(pods[l].cpu)/1e9)
	}
	family("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes")
	for _, l := range slices.Sorted(maps.Keys(pods)) {
		fmt.Fprintf(w, "pod_memory_working_set_bytes{%s} %d\n", l, pods[l].memory)
	}
	family("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise")
	fmt.Fprintln(w, "resource_scrape_error 0")
}
