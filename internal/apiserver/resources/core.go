package resources

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"carob/internal/apiserver/table"
)

func core(kind string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(kind) }

// eventTTL is how long an event is kept.
const eventTTL = time.Hour

// Core returns the kinds of the core group except pods, services, volumes and replication controllers.
func Core() []*Resource {
	return []*Resource{namespaces(), nodes(), events(), configMaps(), secrets(), serviceAccounts(), endpoints(), limitRanges(), resourceQuotas(),
		podTemplates()}
}

// Volumes returns persistent volumes and their claims.
func Volumes() []*Resource { return []*Resource{persistentVolumes(), persistentVolumeClaims()} }

func namespaces() *Resource {
	return Of[corev1.Namespace, corev1.NamespaceList](Resource{
		Kind: core("Namespace"), ReturnDeleted: true, Plural: "namespaces", ShortNames: []string{"ns"}, Cluster: true, Status: true, StatusMetadata: true, NoGeneration: true,
		ValidateName: apivalidation.ValidateNamespaceName,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			ns := obj.(*corev1.Namespace)
			ns.Status.Phase = corev1.NamespaceActive
			// Without this finalizer a namespace would vanish while it still has content.
			if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
				ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
			setNameLabel(ns)
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			ns := obj.(*corev1.Namespace)
			ns.Spec.Finalizers = old.(*corev1.Namespace).Spec.Finalizers
			setNameLabel(ns)
		},
		Fields:    map[string]func(runtime.Object) string{"status.phase": func(o runtime.Object) string { return string(o.(*corev1.Namespace).Status.Phase) }},
		Customize: func(s *genericregistry.Store, _ *Strategy) { s.ShouldDeleteDuringUpdate = namespaceIsEmpty },
		Main:      newNamespaceStorage, Subresources: namespaceSubresources,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Status", Description: "The status of the namespace"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				ns := o.(*corev1.Namespace)
				return []any{ns.Name, string(ns.Status.Phase), table.Age(ns.CreationTimestamp, now)}
			}},
	})
}

func setNameLabel(ns *corev1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

// prepareNode makes the single range of a node's pods the first of the list: a
// client that knows only one of the fields changes both. A source of the kubelet's
// configuration means nothing any more; only an old one is kept.
func prepareNode(s, old *corev1.NodeSpec) {
	if old == nil || old.ConfigSource == nil { //nolint:staticcheck // stored objects may have it
		s.ConfigSource = nil //nolint:staticcheck // clients may send it
	}
	if old == nil || old.PodPreemptionPolicy == nil {
		s.PodPreemptionPolicy = nil // InPlacePodVerticalScalingSchedulerPreemption is off
	}
	switch {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
}

func nodes() *Resource {
	return Of[corev1.Node, corev1.NodeList](Resource{
		Kind: core("Node"), Plural: "nodes", ShortNames: []string{"no"}, Cluster: true, Status: true, StatusMetadata: true, NoGeneration: true,
		CreateStatus: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			n := obj.(*corev1.Node)
			prepareNode(&n.Spec, nil)
			n.Status.Config = nil //nolint:staticcheck // clients may send it
		},
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			if old.(*corev1.Node).Status.Config == nil { //nolint:staticcheck // stored objects may have it
				obj.(*corev1.Node).Status.Config = nil //nolint:staticcheck // clients may send it
			}
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			prepareNode(&obj.(*corev1.Node).Spec, &old.(*corev1.Node).Spec)
		},
		Fields: map[string]func(runtime.Object) string{
			"spec.unschedulable": func(o runtime.Object) string { return strconv.FormatBool(o.(*corev1.Node).Spec.Unschedulable) },
		},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Status", Description: "The status of the node"}, {Name: "Roles", Description: "The roles of the node"},
				table.AgeColumn, {Name: "Version", Description: "Kubelet Version reported by the node."}, {Name: "Internal-IP", Wide: true},
				{Name: "External-IP", Wide: true}, {Name: "OS-Image", Wide: true}, {Name: "Kernel-Version", Wide: true}, {Name: "Container-Runtime", Wide: true}},
			Row: nodeRow,
		},
	})
}

func nodeRow(o runtime.Object, now time.Time) []any {
	n := o.(*corev1.Node)
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if status = "NotReady"; c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	address := func(t corev1.NodeAddressType) string {
		for _, a := range n.Status.Addresses {
			if a.Type == t {
				return a.Address
			}
		}
		return none
	}
	or := func(s string) string {
		if s == "" {
			return unknown
		}
		return s
	}
	i := n.Status.NodeInfo
	return []any{n.Name, status, orNone(nodeRoles(n)), table.Age(n.CreationTimestamp, now), i.KubeletVersion, address(corev1.NodeInternalIP),
		address(corev1.NodeExternalIP), or(i.OSImage), or(i.KernelVersion), or(i.ContainerRuntimeVersion)}
}

func nodeRoles(n *corev1.Node) string {
	const prefix = "node-role.kubernetes.io/"
	roles := sets.New[string]()
	for k, v := range n.Labels {
		if r, ok := strings.CutPrefix(k, prefix); ok && r != "" {
			roles.Insert(r)
		} else if k == "kubernetes.io/role" && v != "" {
			roles.Insert(v)
		}
	}
	return strings.Join(sets.List(roles), ",")
}

func events() *Resource {
	event := func(o runtime.Object) *corev1.Event { return o.(*corev1.Event) }
	f := map[string]func(runtime.Object) string{
		"involvedObject.kind":            func(o runtime.Object) string { return event(o).InvolvedObject.Kind },
		"involvedObject.namespace":       func(o runtime.Object) string { return event(o).InvolvedObject.Namespace },
		"involvedObject.name":            func(o runtime.Object) string { return event(o).InvolvedObject.Name },
		"involvedObject.uid":             func(o runtime.Object) string { return string(event(o).InvolvedObject.UID) },
		"involvedObject.apiVersion":      func(o runtime.Object) string { return event(o).InvolvedObject.APIVersion },
		"involvedObject.resourceVersion": func(o runtime.Object) string { return event(o).InvolvedObject.ResourceVersion },
		"involvedObject.fieldPath":       func(o runtime.Object) string { return event(o).InvolvedObject.FieldPath },
		"reason":                         func(o runtime.Object) string { return event(o).Reason },
		"reportingComponent":             func(o runtime.Object) string { return eventReporter(event(o)) },
		"source": func(o runtime.Object) string {
			if s := event(o).Source.Component; s != "" {
				return s
			}
			return event(o).ReportingController
		},
		"type": func(o runtime.Object) string { return event(o).Type },
	}
	return Of[corev1.Event, corev1.EventList](Resource{
		Kind: core("Event"), Plural: "events", ShortNames: []string{"ev"}, NoGeneration: true, CreateOnUpdate: true, TTL: eventTTL,
		Dependents: rest.Unsupported,
		AlsoServed: []schema.GroupVersion{eventsv1.SchemeGroupVersion},
		AlsoFields: map[string]string{
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace", "regarding.name": "involvedObject.name",
			"regarding.uid": "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion", "regarding.resourceVersion": "involvedObject.resourceVersion",
			"regarding.fieldPath": "involvedObject.fieldPath", "reportingController": "reportingComponent",
		},
		Fields: f,
		Table: table.Kind{
			Columns: []table.Column{{Name: "Last Seen", Description: "Time the event was last seen"}, {Name: "Type"}, {Name: "Reason"}, {Name: "Object"},
				{Name: "Subobject", Wide: true}, {Name: "Source", Wide: true}, {Name: "Message"}, {Name: "First Seen", Wide: true},
				{Name: "Count", Wide: true}, {Name: "Name", Format: "name", Wide: true}},
			Row: eventRow,
		},
	})
}

func eventReporter(e *corev1.Event) string {
	if e.ReportingController != "" {
		return e.ReportingController
	}
	return e.Source.Component
}

func eventRow(o runtime.Object, now time.Time) []any {
	e := o.(*corev1.Event)
	first := table.Age(e.FirstTimestamp, now)
	if e.FirstTimestamp.IsZero() && !e.EventTime.IsZero() {
		first = ageMicro(e.EventTime.Time, now)
	}
	last, count := table.Age(e.LastTimestamp, now), e.Count
	switch {
	case e.Series != nil:
		last, count = ageMicro(e.Series.LastObservedTime.Time, now), e.Series.Count
	case e.LastTimestamp.IsZero():
		last = first
	}
	if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source := eventReporter(e)
	if e.Source.Component != "" {
		source = e.Source.Component
	}
	if host := e.Source.Host; host != "" {
		source += ", " + host
	} else if e.ReportingInstance != "" && e.Source.Component == "" {
		source += ", " + e.ReportingInstance
	}
	return []any{last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source, strings.TrimSpace(e.Message), first, int64(count), e.Name}
}

func configMaps() *Resource {
	return Of[corev1.ConfigMap, corev1.ConfigMapList](Resource{
		Kind: core("ConfigMap"), Plural: "configmaps", ShortNames: []string{"cm"}, NoGeneration: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Data", Description: "Number of keys"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*corev1.ConfigMap)
				return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), table.Age(c.CreationTimestamp, now)}
			}},
	})
}

func secrets() *Resource {
	return Of[corev1.Secret, corev1.SecretList](Resource{
		Kind: core("Secret"), Plural: "secrets", NoGeneration: true,
		Fields: map[string]func(runtime.Object) string{"type": func(o runtime.Object) string { return string(o.(*corev1.Secret).Type) }},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			// A client that knows no types keeps the old one.
			if s := obj.(*corev1.Secret); s.Type == "" {
				s.Type = old.(*corev1.Secret).Type
			}
		},
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Type"}, {Name: "Data", Description: "Number of keys"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				s := o.(*corev1.Secret)
				return []any{s.Name, string(s.Type), int64(len(s.Data)), table.Age(s.CreationTimestamp, now)}
			}},
	})
}

func serviceAccounts() *Resource {
	return Of[corev1.ServiceAccount, corev1.ServiceAccountList](Resource{
		Kind: core("ServiceAccount"), ReturnDeleted: true, Plural: "serviceaccounts", ShortNames: []string{"sa"}, NoGeneration: true, ValidateName: apivalidation.ValidateServiceAccountName,
		PrepareCreate: namesOfSecrets, PrepareUpdate: func(ctx context.Context, obj, _ runtime.Object) { namesOfSecrets(ctx, obj) },
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Secrets", Description: "Number of token secrets"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				s := o.(*corev1.ServiceAccount)
				return []any{s.Name, int64(len(s.Secrets)), table.Age(s.CreationTimestamp, now)}
			}},
	})
}

// namesOfSecrets leaves nothing of an account's references to secrets but their names.
func namesOfSecrets(_ context.Context, obj runtime.Object) {
	a, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return
	}
	for i := range a.Secrets {
		a.Secrets[i] = corev1.ObjectReference{Name: a.Secrets[i].Name}
	}
}

func endpoints() *Resource {
	return Of[corev1.Endpoints, corev1.EndpointsList](Resource{
		Kind: core("Endpoints"), Plural: "endpoints", ShortNames: []string{"ep"}, NoGeneration: true, CreateOnUpdate: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Endpoints"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				e := o.(*corev1.Endpoints)
				return []any{e.Name, endpointAddresses(e.Subsets), table.Age(e.CreationTimestamp, now)}
			}},
	})
}

func limitRanges() *Resource {
	return Of[corev1.LimitRange, corev1.LimitRangeList](Resource{
		Kind: core("LimitRange"), Plural: "limitranges", ShortNames: []string{"limits"}, NoGeneration: true, CreateOnUpdate: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			if l := obj.(*corev1.LimitRange); l.Name == "" {
				l.Name = string(uuid.NewUUID())
			}
		},
		Table: createdAt,
	})
}

func resourceQuotas() *Resource {
	return Of[corev1.ResourceQuota, corev1.ResourceQuotaList](Resource{
		Kind: core("ResourceQuota"), ReturnDeleted: true, Plural: "resourcequotas", ShortNames: []string{"quota"}, Status: true, StatusMetadata: true, NoGeneration: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Request"}, {Name: "Limit"}, table.AgeColumn},
			Row: func(o runtime.Object, now time.Time) []any {
				q := o.(*corev1.ResourceQuota)
				names := make([]string, 0, len(q.Status.Hard))
				for n := range q.Status.Hard {
					names = append(names, string(n))
				}
				sort.Strings(names)
				var request, limit []string
				for _, n := range names {
					used, hard := q.Status.Used[corev1.ResourceName(n)], q.Status.Hard[corev1.ResourceName(n)]
					s := fmt.Sprintf("%s: %s/%s", n, used.String(), hard.String())
					if strings.HasPrefix(n, "limits.") {
						limit = append(limit, s)
					} else {
						request = append(request, s)
					}
				}
				return []any{q.Name, strings.Join(request, ", "), strings.Join(limit, ", "), table.Age(q.CreationTimestamp, now)}
			}},
	})
}

func persistentVolumes() *Resource {
	return Of[corev1.PersistentVolume, corev1.PersistentVolumeList](Resource{
		Kind: core("PersistentVolume"), ReturnDeleted: true, Plural: "persistentvolumes", ShortNames: []string{"pv"}, Cluster: true, Status: true, StatusMetadata: true, NoGeneration: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			obj.(*corev1.PersistentVolume).Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: new(metav1.Now())}
		},
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			s, before := &obj.(*corev1.PersistentVolume).Status, old.(*corev1.PersistentVolume).Status
			switch at := s.LastPhaseTransitionTime; {
			case s.Phase == before.Phase && at == nil:
				s.LastPhaseTransitionTime = before.LastPhaseTransitionTime
			case s.Phase != before.Phase && (at == nil || at.Equal(before.LastPhaseTransitionTime)):
				s.LastPhaseTransitionTime = new(metav1.Now())
			}
		},
		Fields: map[string]func(runtime.Object) string{"name": func(o runtime.Object) string { return o.(*corev1.PersistentVolume).Name }},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Capacity"}, {Name: "Access Modes"}, {Name: "Reclaim Policy"}, {Name: "Status"}, {Name: "Claim"},
				{Name: "StorageClass"}, {Name: "VolumeAttributesClass"}, {Name: "Reason"}, table.AgeColumn, {Name: "VolumeMode", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				v := o.(*corev1.PersistentVolume)
				claim := ""
				if c := v.Spec.ClaimRef; c != nil {
					claim = c.Namespace + "/" + c.Name
				}
				phase := string(v.Status.Phase)
				if v.DeletionTimestamp != nil {
					phase = "Terminating"
				}
				size := v.Spec.Capacity[corev1.ResourceStorage]
				return []any{v.Name, size.String(), accessModes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim, v.Spec.StorageClassName,
					ptr.Deref(v.Spec.VolumeAttributesClassName, unset), v.Status.Reason, table.Age(v.CreationTimestamp, now), volumeMode(v.Spec.VolumeMode)}
			}},
	})
}

// syncDataSources makes the older and the newer field for what a volume is filled
// from say the same. A client that knows only the older one expects that a source
// which is neither a claim nor a snapshot is ignored; sources in other namespaces
// are not served.
func syncDataSources(s, old *corev1.PersistentVolumeClaimSpec) {
	elsewhere := func(r *corev1.TypedObjectReference) bool { return r != nil && r.Namespace != nil && *r.Namespace != "" }
	if elsewhere(s.DataSourceRef) && (old == nil || old.DataSourceRef == nil) {
		s.DataSourceRef = nil
	}
	if d := s.DataSource; d != nil && s.DataSourceRef == nil && (old == nil || old.DataSource == nil && old.DataSourceRef == nil) {
		group := ""
		if d.APIGroup != nil {
			group = *d.APIGroup
		}
		if (group != "" || d.Kind != "PersistentVolumeClaim") && (group != "snapshot.storage.k8s.io" || d.Kind != "VolumeSnapshot") {
			s.DataSource = nil
		}
	}
	switch d, r := s.DataSource, s.DataSourceRef; {
	case d != nil && r == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: d.APIGroup, Kind: d.Kind, Name: d.Name}
	case d == nil && r != nil && !elsewhere(r):
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name}
	}
}

func persistentVolumeClaims() *Resource {
	return Of[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](Resource{
		Kind: core("PersistentVolumeClaim"), ReturnDeleted: true, Plural: "persistentvolumeclaims", ShortNames: []string{"pvc"}, Status: true, StatusMetadata: true, NoGeneration: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			c := obj.(*corev1.PersistentVolumeClaim)
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			syncDataSources(&c.Spec, nil)
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			syncDataSources(&obj.(*corev1.PersistentVolumeClaim).Spec, &old.(*corev1.PersistentVolumeClaim).Spec)
		},
		Fields: map[string]func(runtime.Object) string{"name": func(o runtime.Object) string { return o.(*corev1.PersistentVolumeClaim).Name }},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Status"}, {Name: "Volume"}, {Name: "Capacity"}, {Name: "Access Modes"}, {Name: "StorageClass"},
				{Name: "VolumeAttributesClass"}, table.AgeColumn, {Name: "VolumeMode", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*corev1.PersistentVolumeClaim)
				phase, size, modes := string(c.Status.Phase), "", ""
				if c.DeletionTimestamp != nil {
					phase = "Terminating"
				}
				if c.Spec.VolumeName != "" {
					q := c.Status.Capacity[corev1.ResourceStorage]
					size, modes = q.String(), accessModes(c.Status.AccessModes)
				}
				return []any{c.Name, phase, c.Spec.VolumeName, size, modes, ptr.Deref(c.Spec.StorageClassName, ""), ptr.Deref(c.Spec.VolumeAttributesClassName, unset),
					table.Age(c.CreationTimestamp, now), volumeMode(c.Spec.VolumeMode)}
			}},
	})
}

func volumeMode(m *corev1.PersistentVolumeMode) string {
	if m == nil {
		return unset
	}
	return string(*m)
}

func replicationControllers() *Resource {
	rc := func(o runtime.Object) *corev1.ReplicationController { return o.(*corev1.ReplicationController) }
	return Of[corev1.ReplicationController, corev1.ReplicationControllerList](Resource{
		Kind: core("ReplicationController"), Plural: "replicationcontrollers", ShortNames: []string{"rc"}, Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec {
			if t := o.(*corev1.ReplicationController).Spec.Template; t != nil {
				return &t.Spec
			}
			return nil
		},
		Dependents: rest.OrphanDependents,
		Fields:     map[string]func(runtime.Object) string{"status.replicas": func(o runtime.Object) string { return strconv.Itoa(int(rc(o).Status.Replicas)) }},
		Scale: &Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(rc(o).Spec.Replicas, 0), rc(o).Status.Replicas, labelMapSelector(rc(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { rc(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Desired", Type: "integer"}, {Name: "Current", Type: "integer"}, {Name: "Ready", Type: "integer"}, table.AgeColumn,
				{Name: "Containers", Wide: true}, {Name: "Images", Wide: true}, {Name: "Selector", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				r := rc(o)
				var names, images string
				if r.Spec.Template != nil {
					names, images = containers(r.Spec.Template.Spec.Containers)
				}
				return []any{r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas), table.Age(r.CreationTimestamp, now),
					names, images, labelMap(r.Spec.Selector)}
			}},
	})
}

func podTemplates() *Resource {
	return Of[corev1.PodTemplate, corev1.PodTemplateList](Resource{
		Kind: core("PodTemplate"), ReturnDeleted: true, Plural: "podtemplates",
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			if t := obj.(*corev1.PodTemplate); !equality.Semantic.DeepEqual(t.Template, old.(*corev1.PodTemplate).Template) {
				t.Generation++
			}
		},
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*corev1.PodTemplate).Template.Spec },
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "Containers"}, {Name: "Images"}, {Name: "Pod Labels"}},
			Row: func(o runtime.Object, _ time.Time) []any {
				t := o.(*corev1.PodTemplate)
				names, images := containers(t.Template.Spec.Containers)
				return []any{t.Name, names, images, labelMap(t.Template.Labels)}
			}},
	})
}
