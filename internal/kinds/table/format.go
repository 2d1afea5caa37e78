package table

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// None, Unknown, and Unset stand for missing values, as in kubectl.
const (
	None    = "<none>"
	Unknown = "<unknown>"
	Unset   = "<unset>"
)

// OrNone returns s, or None if it is empty.
func OrNone(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Containers returns the names and images of the containers, separated by commas.
func Containers(cs []corev1.Container) (names, images string) {
	n, i := make([]string, len(cs)), make([]string, len(cs))
	for k := range cs {
		n[k], i[k] = cs[k].Name, cs[k].Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

// Selector prints a label selector like kubectl get -o wide.
func Selector(s *metav1.LabelSelector) string {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return OrNone(sel.String())
}

// PointerAge prints the age of an optional time.
func PointerAge(t *metav1.Time, now time.Time) string {
	if t == nil {
		return None
	}
	return Age(*t, now)
}

// LabelMap returns labels as text, None if there are none.
func LabelMap(m map[string]string) string { return labels.FormatLabels(m) }

// More joins the shown elements and the number of omitted ones.
func More(shown []string, total int) string {
	switch {
	case total == 0:
		return None
	case total > len(shown):
		return fmt.Sprintf("%s + %d more...", strings.Join(shown, ","), total-len(shown))
	}
	return strings.Join(shown, ",")
}

// CreatedAt prints name and creation time, for kinds whose age is not useful.
var CreatedAt = Kind{
	Columns: []Column{NameColumn, {Name: "Created At", Type: "date"}},
	Row: func(o runtime.Object, _ time.Time) []any {
		m, err := meta.Accessor(o)
		if err != nil {
			return []any{"", ""}
		}
		return []any{m.GetName(), m.GetCreationTimestamp().UTC().Format(time.RFC3339)}
	},
}

// Lower returns s in lower case.
func Lower(s string) string { return strings.ToLower(s) }

// AgeMicro returns the age of t like kubectl; Unknown for the zero time.
func AgeMicro(t, now time.Time) string {
	if t.IsZero() {
		return Unknown
	}
	return duration.HumanDuration(now.Sub(t))
}

// WideTemplateColumns returns the wide columns of kinds with a pod template: containers, images and
// selector.
var WideTemplateColumns = []Column{
	{Name: "Containers", Wide: true, Description: "Names of each container in the template."},
	{Name: "Images", Wide: true, Description: "Images referenced by each container in the template."},
	{Name: "Selector", Wide: true, Description: "The label selector of the pods."},
}

// Columns returns the columns of a kind, its own ones first.
func Columns(own []Column, rest ...Column) []Column {
	return append(append([]Column{NameColumn}, own...), rest...)
}

// LabelMapSelector returns a map of labels as the text of a selector.
func LabelMapSelector(m map[string]string) string { return labels.SelectorFromSet(m).String() }

// ScaleSelector prints a label selector for a Scale's status.
func ScaleSelector(s *metav1.LabelSelector) string {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return ""
	}
	return sel.String()
}
