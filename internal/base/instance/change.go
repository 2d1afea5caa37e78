package instance

import (
	"fmt"
	"slices"
	"strings"
)

// Facts are the results of the last start, in addition to its flags.
type Facts struct {
	// Pods: pods of the last start may still run on this host.
	Pods bool
	// PodsAt counts the pods in other runtimes, by socket.
	PodsAt map[string]int
}

// Refusal is the reason why a flag must not change.
type Refusal struct {
	Flag   string // with its dashes
	Reason string // what would be lost or duplicated, as a sentence without a full stop
	Way    string // what to do instead
}

// ChangeError lists the refusals of a start with other flags than the last.
type ChangeError []Refusal

func (e ChangeError) Error() string {
	var b strings.Builder
	for i, r := range e {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %s; %s", r.Flag, r.Reason, r.Way)
	}
	b.WriteString(" (--force starts anyway)")
	return b.String()
}

// changeRule is the rule for changes of one flag.
type changeRule struct {
	flag string
	// refuse returns the reason and what to do instead; without a reason the change is allowed.
	// nil: the flag may always change.
	refuse func(old, now Flags, f Facts) (reason, way string)
}

const endPods = "end them first with `carob down --pods`"

// whilePods rejects another value while pods run that were created with the old one.
func whilePods(value func(Flags) string, consequence string) func(old, now Flags, f Facts) (string, string) {
	return func(old, now Flags, f Facts) (reason, way string) {
		was, is := value(old), value(now)
		if was == is || !f.Pods {
			return "", ""
		}
		return fmt.Sprintf("it was %s and is now %s, and pods are running: %s", named(was), named(is), consequence),
			endPods + ", or use the previous value"
	}
}

func named(value string) string {
	if value == "" {
		return "not given"
	}
	return value
}

// unlessNew allows a value that no earlier start has recorded.
func unlessNew(value func(Flags) string, refuse func(old, now Flags, f Facts) (string, string)) func(old, now Flags,
	f Facts) (string, string) {
	return func(old, now Flags, f Facts) (string, string) {
		if value(old) == "" {
			return "", ""
		}
		return refuse(old, now, f)
	}
}

// changeRules has an entry for each field of Flags, so that a new flag cannot be added without a rule for its changes.
func changeRules() map[string]changeRule {
	free := func(flag string) changeRule { return changeRule{flag: flag} }
	nodeName := func(f Flags) string { return f.NodeName }
	podCIDR := func(f Flags) string { return f.PodCIDR }
	dataDir := func(f Flags) string { return f.DataDir }
	return map[string]changeRule{
		"DataDir": {"--data-dir",
			unlessNew(dataDir,
				whilePods(dataDir, "their files, cgroups and addresses are named after the old directory"))},
		"EtcdServers": {"--etcd-servers", otherStore},
		"Encryption":  {"--encryption-provider-config", withoutKeys},
		"RuntimeEndpoint": {"--runtime-endpoint", whilePods(func(f Flags) string { return f.RuntimeEndpoint },
			"the containers in the other runtime would keep running beside new ones")},
		"RuntimeHandlers": {"--runtime-handler", lessHandlers},
		"CNIConfDir": {"--cni-conf-dir", whilePods(func(f Flags) string { return f.CNIConfDir },
			"they would keep addresses that the other network does not have")},
		"CgroupDriver": {"--cgroup-driver",
			whilePods(func(f Flags) string { return strings.TrimPrefix(f.CgroupDriver, "cgroupfs") },
				"their limits are set in the cgroups of the other driver")},
		"NodeName": {"--node-name",
			unlessNew(nodeName, whilePods(nodeName, "they belong to the old node and would be ended"))},
		"PodCIDR": {"--pod-cidr", unlessNew(podCIDR, whilePods(podCIDR, "their addresses are outside the new range"))},
		"ServiceCIDR": {"--service-cidr", func(old, now Flags, _ Facts) (reason, way string) {
			if old.ServiceCIDR == "" || sameRanges(old.ServiceCIDR, now.ServiceCIDR) ||
				addsFamily(old.ServiceCIDR, now.ServiceCIDR) {
				return "", ""
			}
			moved := ""
			if old.DataDir != "" && old.DataDir != now.DataDir {
				moved = fmt.Sprintf(" (it is derived from the data directory, which was %s)", old.DataDir)
			}
			return fmt.Sprintf("it was %s and is now %s%s: stored Services would keep addresses outside the range",
					old.ServiceCIDR, now.ServiceCIDR, moved),
				fmt.Sprintf("start with --service-cidr %s; a ServiceCIDR object adds a range", old.ServiceCIDR)
		}},

		"Standalone": {"--standalone", whilePods(func(f Flags) string {
			if f.Standalone {
				return "given"
			}
			return ""
		}, "the other mode would end them")},
		"ClusterDomain": {"--cluster-domain", func(old, now Flags, f Facts) (reason, way string) {
			return whilePods(func(f Flags) string {
				if f.ClusterDomain == "" {
					return DefaultClusterDomain
				}
				return f.ClusterDomain
			}, "they look for Services in the old domain")(old, now, f)
		}},

		// Changing these loses nothing.
		"PodMTU":              free("--pod-mtu"),     // running pods keep theirs
		"ClusterDNS":          free("--cluster-dns"), // running pods keep theirs
		"DNS":                 free("--dns"),
		"ServiceProxy":        free("--service-proxy"),
		"LoadBalancerPool":    free("--load-balancer-pool"), // Services outside get another address
		"LoadBalancerLinks":   free("--load-balancer-interface"),
		"ServiceProxyHealthz": free("--service-proxy-healthz-bind-address"),
		"GatewayHTTP":         free("--gateway-http"), // routes exist only where they are configured
		"GatewayHTTPS":        free("--gateway-https"),
		"GatewayAddresses":    free("--gateway-addresses"),
		"GatewayAccessLog":    free("--gateway-access-log"),
		"GatewayProxies":      free("--gateway-proxy-protocol"),
		"EndpointPicker":      free("--endpoint-picker-listen"),
		"EndpointPickerPlain": free("--endpoint-picker-plaintext"),
		"Listen":              free("--listen"),
		"EtcdCA":              free("--etcd-cafile"),
		"EtcdCert":            free("--etcd-certfile"),
		"EtcdKey":             free("--etcd-keyfile"),
		"RegistryConfig":      free("--registry-config"),
		"ResolvConf":          free("--resolv-conf"),
		"PodManifestDir":      free("--pod-manifest-dir"), // the directory's content decides about static pods
		"ContainerLogDir":     free("--container-log-dir"),
		"KubeletDir":          free("--kubelet-dir"),
		"LocalStoragePath":    free("--local-storage-path"), // volumes stay where they are
		"Pressure":            free("--eviction-hard"),      // and the other thresholds
		"Hardening":           free("--pod-max-pids"),       // and the other defaults: they apply to new pods
		"Audit":               free("--audit-policy-file"),
		"Authentication":      free("--authentication-config"),
		"Tracing":             free("--tracing-config-file"),
		"Admission":           free("--admission-control-config-file"),
		"Scheduler":           free("--scheduler-config"), // pods that have a node keep it
		"Profiling":           free("--profiling"),
		"ServiceNodePorts":    free("--service-node-port-range"), // services keep their ports
		"MaxPods":             free("--max-pods"),                // running pods are not affected
		"DrainTimeout":        free("--deletion-drain-timeout"),
		"Kubelet":             free("--kubelet-config"),
		"CredentialProviders": free("--image-credential-provider-config"),
		"CredentialPrograms":  free("--image-credential-provider-bin-dir"),
		"LogLevel":            free("--log-level"),
		"Force":               free("--force"),
	}
}

// Change decides whether an instance whose last start had the flags old may start with other flags:
// nothing that it has may be lost or duplicated unless the user forces it. Both are complete, as
// returned by Derive.
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

// otherStore rejects a store that is unrelated to the old one. Members of an external cluster come
// and go: one common member proves that it is the same cluster.
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
			return "the built-in etcd"
		}
		return "etcd at " + strings.Join(f.EtcdServers, ",")
	}
	way = "omit the flag, as before"
	if len(old.EtcdServers) > 0 {
		way = "use --etcd-servers " + strings.Join(old.EtcdServers, ",")
	}
	return fmt.Sprintf(
			"this cluster is in %s, not in %s: it would be another cluster, and all pods of this one would be ended",
			store(old), store(now)),
		way + ", or another --data-dir for another cluster"
}

// withoutKeys rejects the removal of the encryption keys.
func withoutKeys(old, now Flags, _ Facts) (reason, way string) {
	if old.Encryption == "" || now.Encryption != "" {
		return "", ""
	}
	return "encrypted objects could not be read any more",
		"use --encryption-provider-config " + old.Encryption +
			", with the provider `identity` first, and write all objects again before you omit it"
}

// addsFamily reports whether a list is the other one with a range of a second family behind it.
func addsFamily(before, after string) bool {
	x, err := serviceRanges(before)
	y, err2 := serviceRanges(after)
	return err == nil && err2 == nil && len(x) == 1 && len(y) == 2 && x[0] == y[0]
}

// sameRanges compares lists of ranges by value.
func sameRanges(a, b string) bool {
	x, err := serviceRanges(a)
	y, err2 := serviceRanges(b)
	return err == nil && err2 == nil && slices.Equal(x, y)
}
