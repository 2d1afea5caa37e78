package explain

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Remaining is an object in a namespace that is being deleted.
type Remaining struct {
	Resource, Name string // configmaps, or widgets.example.com
	Finalizers     []string
	Deleted        bool // it was requested
}

// Contents are the objects of a namespace that is being deleted.
type Contents struct {
	Objects    []Remaining
	More       bool     // Objects are not all
	Unreadable []string // which resources could not be listed, and why
}

// mostRemaining is how many objects of a namespace are named.
const mostRemaining = 10

// finalizers lists what removes well-known finalizers, and when.
var finalizers = map[string]string{
	"foregroundDeletion":                          "the garbage collector removes it when its dependents are gone",
	"orphan":                                      "the garbage collector removes it when its dependents have no owner",
	"kubernetes.io/pvc-protection":                "carob removes it when no pod uses the claim",
	"kubernetes.io/pv-protection":                 "carob removes it when no claim is bound to the volume",
	"batch.kubernetes.io/job-tracking":            "the Job controller removes it when the pod has ended and is counted",
	"resource.kubernetes.io/delete-protection":    "carob removes it when no pod uses the claim",
	"service.kubernetes.io/load-balancer-cleanup": "the controller of its load balancer removes it",
}

// Namespace explains a Namespace; contents is nil unless it is being deleted.
func Namespace(n *corev1.Namespace, contents *Contents, now time.Time) (out Lines) {
	if n.Status.Phase != corev1.NamespaceTerminating {
		out.info("is active")
		return out
	}
	out.object(n, unrecorded, now)
	out.contents(n.Name, contents)
	named := contents != nil && len(contents.Objects) > 0
	for _, c := range n.Status.Conditions {
		counts := c.Type == corev1.NamespaceContentRemaining || c.Type == corev1.NamespaceFinalizersRemaining
		if c.Status == corev1.ConditionTrue && (!counts || !named) {
			out.warn("%s: %s", c.Type, because(c.Reason, c.Message))
		}
	}
	if len(n.Status.Conditions) == 0 && !named {
		out.warn("its objects are not counted yet")
	}
	if len(n.Spec.Finalizers) > 1 || len(n.Spec.Finalizers) == 1 && n.Spec.Finalizers[0] != corev1.FinalizerKubernetes {
		out.warn("stays until all of spec.finalizers are removed: %v", n.Spec.Finalizers)
	}
	return out
}

// contents names what remains, what each object waits for, and who must act.
func (l *Lines) contents(namespace string, c *Contents) {
	if c == nil {
		return
	}
	var foreign *Remaining
	for i, o := range c.Objects {
		if i == mostRemaining {
			more := fmt.Sprint(len(c.Objects) - i)
			if c.More {
				more += " or more"
			}
			l.warn("and %s other objects remain", more)
			break
		}
		switch {
		case len(o.Finalizers) > 0:
			var who []string
			for _, f := range o.Finalizers {
				by, known := finalizers[f]
				if !known {
					by = "only the controller that set it removes it"
					if isWord(o.Name) {
						foreign = cmp.Or(foreign, &c.Objects[i])
					}
				}
				who = append(who, fmt.Sprintf("%s (%s)", f, by))
			}
			l.warn("%s/%s waits for its finalizers to be removed: %s", o.Resource, o.Name, strings.Join(who, ", "))
		case o.Deleted:
			l.warn("%s/%s is ending", o.Resource, o.Name)
		default:
			l.warn("%s/%s is not deleted yet", o.Resource, o.Name)
		}
	}
	if foreign != nil {
		l.info("if no controller is left that would remove a finalizer, remove it yourself (what the controller would "+
			"have cleaned up stays): kubectl patch %s %s -n %s --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
			foreign.Resource, foreign.Name, namespace)
	}
	for _, u := range c.Unreadable {
		l.warn("could not be listed: %s", u)
	}
}

// isWord reports whether a shell takes a name as it is. Roles, for instance, may have others.
func isWord(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".:-", r)
	}) && !strings.HasPrefix(name, "-")
}
