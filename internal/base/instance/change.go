package instance

import (
	"fmt"
	"slices"
	"strings"
)

// Facts are what a start finds of the one before, beside its flags.
type Facts struct {
	// Pods: pods of the last start may still run on this host.
	Pods bool
}

// Refusal says why a flag may not be other than it was.
type Refusal struct {
	Flag   string // with its dashes
	Reason string // what would be lost or doubled, as a sentence without a full stop
	Way    string // what to do instead
}

// ChangeError holds what stands against a start with other flags than the last.
type ChangeError []Refusal

func (e ChangeError) Error() string {
	var b strings.Builder
	for i, r := range e {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %s; %s", r.Flag, r.Reason, r.Way)
	}
	b.WriteString(" (--force starts nevertheless)")
	return b.String()
}

// changeRule is what stands against another value of one flag.
type changeRule struct {
	flag string
	// refuse returns the reason and the way out; no reason: the change is fine.
	// nil: the flag may always be changed.
	refuse func(old, now Flags, f Facts) (reason, way string)
}

const endPods = "end them first with `carob down --pods`"

// whilePods refuses another value while pods run that were made with the old one.
func whilePods(value func(Flags) string, consequence string) func(old, now Flags, f Facts) (string, string) {
	return func(old, now Flags, f Facts) (reason, way string) {
		was, is := value(old), value(now)
		if was == is || !f.Pods {
			return "", ""
		}
		return fmt.Sprintf("it was %s and is %s now, and pods run: %s", named(was), named(is), consequence), endPods + ", or leave it as it was"
	}
}

func named(value string) string {
	if value == "" {
		return "not given"
	}
	return value
}

// unlessNew lets a value be set that no earlier start has recorded.
func unlessNew(value func(Flags) string, refuse func(old, now Flags, f Facts) (string, string)) func(old, now Flags, f Facts) (string, string) {
	return func(old, now Flags, f Facts) (string, string) {
		if value(old) == "" {
			return "", ""
		}
		return refuse(old, now, f)
	}
}

// changeRules has each field of Flags: a new one must be thought about.
func changeRules() map[string]changeRule {
	free := func(flag string) changeRule { return changeRule{flag: flag} }
	nodeName := func(f Flags) string { return f.NodeName }
	podCIDR := func(f Flags) string { return f.PodCIDR }
	dataDir := func(f Flags) string { return f.DataDir }
	return map[string]changeRule{
		"DataDir":     {"--data-dir", unlessNew(dataDir, whilePods(dataDir, "their files, cgroups and addresses are named after the old directory"))},
		"EtcdServers": {"--etcd-servers", otherStore},
		"Encryption":  {"--encryption-provider-config", withoutKeys},
		"RuntimeEndpoint": {"--runtime-endpoint", whilePods(func(f Flags) string { return f.RuntimeEndpoint },
			"the containers in the other runtime would go on beside new ones")},
		"CNIConfDir": {"--cni-conf-dir", whilePods(func(f Flags) string { return f.CNIConfDir },
			"they would keep addresses that the other network does not know")},
		"CgroupDriver": {"--cgroup-driver", whilePods(func(f Flags) string { return strings.TrimPrefix(f.CgroupDriver, "cgroupfs") },
			"their limits are set in the cgroups of the other driver")},
		"NodeName": {"--node-name", unlessNew(nodeName, whilePods(nodeName, "they belong to the old node and would be ended"))},
		"PodCIDR":  {"--pod-cidr", unlessNew(podCIDR, whilePods(podCIDR, "their addresses are outside of the new range"))},
		"ServiceCIDR": {"--service-cidr", func(old, now Flags, _ Facts) (reason, way string) {
			if old.ServiceCIDR == "" || sameRanges(old.ServiceCIDR, now.ServiceCIDR) {
				return "", ""
			}
			return fmt.Sprintf("it was %s and is %s now: services that are stored would keep addresses outside of it", old.ServiceCIDR, now.ServiceCIDR),
				"leave it as it was; a ServiceCIDR object adds a range"
		}},

		// A restart with other values of these loses nothing.
		"Listen":           free("--listen"),
		"EtcdCA":           free("--etcd-cafile"),
		"EtcdCert":         free("--etcd-certfile"),
		"EtcdKey":          free("--etcd-keyfile"),
		"RegistryConfig":   free("--registry-config"),
		"ResolvConf":       free("--resolv-conf"),
		"PodManifestDir":   free("--pod-manifest-dir"), // static pods are what lies there
		"ContainerLogDir":  free("--container-log-dir"),
		"Pressure":         free("--eviction-hard"), // and its like
		"Hardening":        free("--pod-max-pids"),  // and its like: the next pods have it
		"Audit":            free("--audit-policy-file"),
		"Authentication":   free("--authentication-config"),
		"Admission":        free("--admission-control-config-file"),
		"Profiling":        free("--profiling"),
		"ServiceNodePorts": free("--service-node-port-range"), // services keep the ports that they have
		"MaxPods":          free("--max-pods"),                // pods that run go on
		"LogLevel":         free("--log-level"),
		"Force":            free("--force"),
	}
}

// Change decides whether an instance whose last start had the flags old may start
// with others: nothing that it has may get lost or come to be there twice without
// anybody having said so. Both are complete, as Derive leaves them.
func Change(old, now Flags, f Facts) []Refusal {
	var refused []Refusal
	for _, r := range changeRules() {
		if r.refuse == nil {
			continue
		}
		if reason, way := r.refuse(old, now, f); reason != "" {
			refused = append(refused, Refusal{Flag: r.flag, Reason: reason, Way: way})
		}
	}
	slices.SortFunc(refused, func(a, b Refusal) int { return strings.Compare(a.Flag, b.Flag) })
	return refused
}

// otherStore refuses a store that has nothing to do with the old one. Members of an
// external cluster come and go: one that stays says that it is the same.
func otherStore(old, now Flags, _ Facts) (reason, way string) {
	if len(old.EtcdServers) == 0 && len(now.EtcdServers) == 0 {
		return "", ""
	}
	for _, s := range now.EtcdServers {
		if slices.Contains(old.EtcdServers, s) {
			return "", ""
		}
	}
	store := func(f Flags) string {
		if len(f.EtcdServers) == 0 {
			return "the embedded store"
		}
		return "etcd at " + strings.Join(f.EtcdServers, ",")
	}
	way = "leave the flag out, as before"
	if len(old.EtcdServers) > 0 {
		way = "give --etcd-servers " + strings.Join(old.EtcdServers, ",")
	}
	return fmt.Sprintf("this cluster is in %s, not in %s: it would be another cluster, and all pods of this one would be ended", store(old), store(now)),
		way + ", or another --data-dir for another cluster"
}

// withoutKeys refuses to forget the keys of what is encrypted.
func withoutKeys(old, now Flags, _ Facts) (reason, way string) {
	if old.Encryption == "" || now.Encryption != "" {
		return "", ""
	}
	return "what was stored encrypted could not be read any more",
		"give --encryption-provider-config " + old.Encryption + ", with the provider `identity` in front and everything written again before you leave it out"
}

// sameRanges compares lists of ranges by their meaning.
func sameRanges(a, b string) bool {
	x, err := serviceRanges(a)
	y, err2 := serviceRanges(b)
	return err == nil && err2 == nil && slices.Equal(x, y)
}
