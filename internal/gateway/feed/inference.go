package feed

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/core/explain"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
	"carob/internal/gateway/statuses"
	"carob/internal/inference"
)

// inferenceFeed has the objects of the inference extension.
type inferenceFeed struct {
	served  map[string]bool // definitions that the API server has
	changed bool            // an object of these kinds, or a configuration of a picker, has changed
	// patience is how long to wait for the first lists: without them routes would have no pools for a moment. They may
	// never arrive.
	patience time.Time

	pools      store[*inferenceapi.Pool]
	oldPools   store[*inferenceapi.OldPool]
	models     store[*inferenceapi.Model]
	objectives store[*inferenceapi.Objective]
	rewrites   store[*inferenceapi.Rewrite]
	// of inferenceapi.RouterGroup
	routerObjectives store[*inferenceapi.Objective]
	routerRewrites   store[*inferenceapi.Rewrite]
	pods             store[*corev1.Pod]
	ofSpace          map[string]map[string]*corev1.Pod // pods that can be endpoints, by namespace and name
}

// listTime is how long to wait for the first lists of pools.
const listTime = 3 * time.Second

// definitionOf a stage, by its kind.
func definitionOf(at stage) string {
	switch at { //nolint:exhaustive // the others need no definition
	case poolKinds:
		return "inferencepools." + inferenceapi.Group
	case oldPoolKinds:
		return "inferencepools." + inferenceapi.OldGroup
	case modelKinds:
		return "inferencemodels." + inferenceapi.OldGroup
	case objectiveKinds:
		return "inferenceobjectives." + inferenceapi.OldGroup
	case rewriteKinds:
		return "inferencemodelrewrites." + inferenceapi.OldGroup
	case routerObjectiveKinds:
		return "inferenceobjectives." + inferenceapi.RouterGroup
	case routerRewriteKinds:
		return "inferencemodelrewrites." + inferenceapi.RouterGroup
	}
	return ""
}

// SetInference sets which definitions of the inference extension the API server has, by their names.
func (f *Feed) SetInference(served map[string]bool) {
	f.mu.Lock()
	f.inference.served = served
	f.mu.Unlock()
	poke(f.restage)
}

// declarePools lists the kinds of the inference extension.
func (f *Feed) declarePools() {
	if f.cfg.REST == nil {
		return
	}
	clients, err := statuses.PoolClients(f.cfg.REST)
	if err != nil {
		klog.Background().Error(err, "InferencePools are not served")
		return
	}
	in := &f.inference
	in.ofSpace = map[string]map[string]*corev1.Pod{}
	remote := func(group, resource string) func() cache.ListerWatcher {
		return func() cache.ListerWatcher {
			return cache.NewListWatchFromClient(clients[group], resource, metav1.NamespaceAll, fields.Everything())
		}
	}
	in.pools.changed = func(_, _ *inferenceapi.Pool) { in.changed = true; poke(f.restage) }
	in.oldPools.changed = func(_, _ *inferenceapi.OldPool) { in.changed = true; poke(f.restage) }
	in.models.changed = func(_, _ *inferenceapi.Model) { in.changed = true }
	objective := func(_, _ *inferenceapi.Objective) { in.changed = true }
	rewrite := func(_, _ *inferenceapi.Rewrite) { in.changed = true }
	in.objectives.changed, in.routerObjectives.changed = objective, objective
	in.rewrites.changed, in.routerRewrites.changed = rewrite, rewrite
	in.pods.changed = f.podChanged
	watch(f, &in.pools, poolKinds, "inferencepools", &inferenceapi.Pool{}, remote(inferenceapi.Group, "inferencepools"))
	watch(f, &in.oldPools, oldPoolKinds, "inferencepools-v1alpha2", &inferenceapi.OldPool{},
		remote(inferenceapi.OldGroup, "inferencepools"))
	watch(f, &in.models, modelKinds, "inferencemodels", &inferenceapi.Model{},
		remote(inferenceapi.OldGroup, "inferencemodels"))
	watch(f, &in.objectives, objectiveKinds, "inferenceobjectives", &inferenceapi.Objective{},
		remote(inferenceapi.OldGroup, "inferenceobjectives"))
	watch(f, &in.rewrites, rewriteKinds, "inferencemodelrewrites", &inferenceapi.Rewrite{},
		remote(inferenceapi.OldGroup, "inferencemodelrewrites"))
	watch(f, &in.routerObjectives, routerObjectiveKinds, "inferenceobjectives-llm-d", &inferenceapi.Objective{},
		remote(inferenceapi.RouterGroup, "inferenceobjectives"))
	watch(f, &in.routerRewrites, routerRewriteKinds, "inferencemodelrewrites-llm-d", &inferenceapi.Rewrite{},
		remote(inferenceapi.RouterGroup, "inferencemodelrewrites"))
	watch(f, &in.pods, podKinds, "pods", &corev1.Pod{},
		local(f.cfg.Client.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, fields.Everything()))
}

// neededPools returns which stages of the inference extension are needed. The lock is held.
func (f *Feed) neededPools(out *[stages]bool) {
	for at := poolKinds; at < podKinds; at++ {
		out[at] = out[routeKinds] && f.inference.served[definitionOf(at)] && len(f.kinds[at]) > 0
	}
	out[podKinds] = out[poolKinds] && len(f.inference.pools.all) > 0 ||
		out[oldPoolKinds] && len(f.inference.oldPools.all) > 0
}

// await begins the wait for the first lists of a stage, which ends on its own. The lock is held.
func (f *Feed) await(at stage) {
	if at < poolKinds {
		return
	}
	f.inference.patience = time.Now().Add(listTime)
	time.AfterFunc(listTime, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.notify()
	})
}

// awaiting reports whether the first lists of pools are still expected. The lock is held.
func (f *Feed) awaiting() bool {
	if time.Now().After(f.inference.patience) {
		return false
	}
	for at := poolKinds; at < stages; at++ {
		if f.running[at] != nil && slices.ContainsFunc(f.kinds[at], func(k *kind) bool { return !k.listed }) {
			return true
		}
	}
	return false
}

// pools are the objects of the inference extension; nil if the API server has no pools.
func (f *Feed) pools() *gatewayplan.Inference {
	in := &f.inference
	if f.running[poolKinds] == nil && f.running[oldPoolKinds] == nil {
		return nil
	}
	return &gatewayplan.Inference{Pools: values(in.pools.all), OldPools: values(in.oldPools.all),
		Models: values(in.models.all), Objectives: values(in.objectives.all), Rewrites: values(in.rewrites.all),
		RouterObjectives: values(in.routerObjectives.all), RouterRewrites: values(in.routerRewrites.all),
		Configs: f.pickerConfigs()}
}

// pickerConfigKey is the key of an EndpointPickerConfig in its ConfigMap.
const pickerConfigKey = explain.PickerKey

// readConfig is an EndpointPickerConfig that was parsed.
type readConfig struct {
	text string
	gatewayplan.PickerConfig
}

// pickerConfigs parses the configurations of pickers that have changed.
func (f *Feed) pickerConfigs() map[name]gatewayplan.PickerConfig {
	out, read := map[name]gatewayplan.PickerConfig{}, map[name]readConfig{}
	for key, m := range f.configMaps.all { // any order: into a map
		text, ok := m.Data[pickerConfigKey]
		if !ok {
			continue
		}
		known, was := f.readPicks[key]
		if !was || known.text != text {
			known = readConfig{text: text}
			config, err := inference.ReadConfig([]byte(text))
			if known.Config = config; err != nil {
				known.Problem = err.Error()
			}
		}
		read[key], out[key] = known, known.PickerConfig
	}
	f.readPicks = read
	return out
}

// podChanged finds the pools whose endpoints are affected by a change of a pod. The lock is held.
func (f *Feed) podChanged(before, after *corev1.Pod) {
	in := &f.inference
	if before != nil && after != nil {
		was, wasOK := endpoints.AddressOf(before)
		is, isOK := endpoints.AddressOf(after)
		if was == is && wasOK == isOK && before.UID == after.UID && maps.Equal(before.Labels, after.Labels) {
			if isOK {
				in.ofSpace[after.Namespace][after.Name] = after
			}
			return
		}
	}
	touch := func(p *corev1.Pod) {
		for key, pool := range in.pools.all { // any order: into a set
			if key.Namespace == p.Namespace && endpoints.Selects(pool.Spec.Selector.MatchLabels, p.Labels) {
				f.touched[httproute.Ref{Namespace: key.Namespace, Name: key.Name, Pool: inferenceapi.Group}] = true
			}
		}
		for key, pool := range in.oldPools.all {
			if key.Namespace == p.Namespace && endpoints.Selects(pool.Spec.Selector, p.Labels) {
				f.touched[httproute.Ref{Namespace: key.Namespace, Name: key.Name, Pool: inferenceapi.OldGroup}] = true
			}
		}
	}
	if before != nil {
		if delete(in.ofSpace[before.Namespace], before.Name); len(in.ofSpace[before.Namespace]) == 0 {
			delete(in.ofSpace, before.Namespace)
		}
		touch(before)
	}
	if after == nil {
		return
	}
	if _, ok := endpoints.AddressOf(after); ok {
		if in.ofSpace[after.Namespace] == nil {
			in.ofSpace[after.Namespace] = map[string]*corev1.Pod{}
		}
		in.ofSpace[after.Namespace][after.Name] = after
	}
	touch(after)
}

// takePods adds the pods of the namespaces with pools to a snapshot. The lock is held.
func (f *Feed) takePods(s *Snapshot) {
	s.Touched, f.touched = f.touched, map[httproute.Ref]bool{}
	s.Pods = map[string][]*corev1.Pod{}
	if !f.plan {
		for ref := range s.Touched {
			f.addPods(s, ref.Namespace)
		}
		return
	}
	for key := range f.inference.pools.all {
		f.addPods(s, key.Namespace)
	}
	for key := range f.inference.oldPools.all {
		f.addPods(s, key.Namespace)
	}
}

// addPods adds the pods of a namespace to a snapshot. The lock is held.
func (f *Feed) addPods(s *Snapshot, namespace string) {
	if _, done := s.Pods[namespace]; !done {
		s.Pods[namespace] = slices.Collect(maps.Values(f.inference.ofSpace[namespace]))
	}
}

// takeInference adds the objects of the inference extension to the changes if one has changed. The lock is held.
func (f *Feed) takeInference() {
	if !f.inference.changed {
		return
	}
	f.inference.changed = false
	if f.changes.Inference = f.pools(); f.changes.Inference == nil {
		f.plan = true // the kinds are not watched any more
	}
}
