package stream

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime"
)

// checkpointDir is the folder of the archives, below the directory of the agent. They contain the memory of processes.
const checkpointDir = "checkpoints"

// checkpoint makes the runtime write the state of a running container to an archive, and responds with its path. The
// container continues to run. The responses are those of the kubelet (ContainerCheckpoint: S0.16, S0.60).
func (s *Server) checkpoint(w http.ResponseWriter, req *http.Request) {
	pod, name := s.cfg.Pods.Pod(req.PathValue("namespace"), req.PathValue("pod")), req.PathValue("container")
	if pod == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	if !slices.Contains(containerNames(pod), name) {
		http.Error(w, fmt.Sprintf("container %v does not exist", name), http.StatusNotFound)
		return
	}
	options := &cri.CheckpointContainerRequest{}
	if all := req.URL.Query()["timeout"]; len(all) > 0 { // the last one counts
		var err error
		if options.Timeout, err = strconv.ParseInt(all[len(all)-1], 10, 64); err != nil {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
			return
		}
	}
	if err := s.writeCheckpoint(req, pod, name, options); err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", pod.Namespace, pod.Name, name, err),
			http.StatusInternalServerError)
		return
	}
	writeJSON(w, map[string][]string{"items": {options.Location}})
}

// writeCheckpoint sets where the archive is. All names in it are those of objects that the API server has accepted.
func (s *Server) writeCheckpoint(req *http.Request, pod *corev1.Pod, name string,
	options *cri.CheckpointContainerRequest) error {
	if options.Timeout < 0 {
		return errors.New("CheckpointContainer requires the timeout value to be > 0")
	}
	options.ContainerId = s.cfg.Pods.ContainerID(pod.UID, name)
	if options.ContainerId == "" {
		return fmt.Errorf("container %v not found", name)
	}
	dir := filepath.Join(s.cfg.Root, checkpointDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the folder of checkpoints: %w", err)
	}
	options.Location = filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, name,
		time.Now().Format(time.RFC3339)))
	_, err := runtime.Checkpoint(req.Context(), s.cfg.Runtime, options)
	return err
}

func containerNames(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.InitContainers {
		names = append(names, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		names = append(names, pod.Spec.EphemeralContainers[i].Name)
	}
	return names
}
