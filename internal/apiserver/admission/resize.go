package admission

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"carob/internal/core/resources"
)

// fits compares a resized pod with the capacity of its node; the agent considers the other pods
// (L1.35).
func fits(a admission.Attributes, p *corev1.Pod, node *corev1.Node) error {
	if os := node.Status.NodeInfo.OperatingSystem; os != "" && os != string(corev1.Linux) {
		return refuse(a, "UnsupportedPlatform",
			fmt.Sprintf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	if len(node.Status.Allocatable) == 0 {
		return nil // the agent has not reported the node's capacity yet
	}
	requests := resources.SpecRequests(p)
	var over []string
	if requested, have := requests.Cpu().MilliValue(), node.Status.Allocatable.Cpu().MilliValue(); requested > have {
		over = append(over, fmt.Sprintf("cpu, requested: %d, allocatable: %d", requested, have))
	}
	if requested, have := requests.Memory().Value(), node.Status.Allocatable.Memory().Value(); requested > have {
		over = append(over, fmt.Sprintf("memory, requested: %d, allocatable: %d", requested, have))
	}
	if len(over) == 0 {
		return nil
	}
	return refuse(a, "NodeCapacity", "node didn't have enough allocatable resources: "+strings.Join(over, "; "))
}

// refuse returns a Forbidden error with a machine-readable cause.
func refuse(a admission.Attributes, cause metav1.CauseType, message string) error {
	err := admission.NewForbidden(a, fmt.Errorf("%s", message))
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes,
			metav1.StatusCause{Type: cause, Message: message})
	}
	return err
}
