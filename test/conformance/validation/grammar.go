package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Questions from the grammar of fields: for each field of each type, values that fit its name and type, in valid,
// nearly valid, and hostile forms.

// question is a change that tests a grammar. Its id names type, field and class: equal ones are tested once
// for all objects that hold the type.
type question struct {
	op
	id string
	// always keeps its line although another value has the same result.
	always bool
}

// anything are values for any string.
var anything = []string{
	"a\x00b", "\x00", "a\nb", "a\tb", "a\x1bb", "a\x7fb", "a\u0085b", "a\u202eb", "a\u00a0b", "é", "日本", "\U0001f600",
	"\ufeffa", " ", " a", "a ", "A", "aB", "a.", ".a", "a..b", "-a", "a-", "a--b",
	"a_b", "_", "a:b", ":", "1", "01", "-1", "1a", "a1", "a,b", "a=b", "=", "a@b", "a%b", "%2e%2e", "a\\b", "$", "$(A)",
	"{a}", "a;b", "a&b", "a?b", "a#b", "a|b", "'a'", `"a"`, "`a`", "~", "a+b", "(", "[",
	".", "..", "a.b", "a.b.c", "A.b", "a/", "a//b", "/a", "a/b/c", "a/B", "A/b", "a.b/c", "true", "null", "None", "nil",
	"ab", "abc",
	strings.Repeat("a", 15), strings.Repeat("a", 16), strings.Repeat("a", 52), strings.Repeat("a", 53),
	strings.Repeat("a", 58), strings.Repeat("a", 59), strings.Repeat("a", 63), strings.Repeat("a", 128),
	strings.Repeat("a", 129), strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("a", 256),
	strings.Repeat("a", 257), strings.Repeat("a.", 126) + "a", strings.Repeat("a", 1024), strings.Repeat("a", 1025),
	strings.Repeat("é", 32), strings.Repeat("a", 63) + "/" + strings.Repeat("b", 63), strings.Repeat("a", 64) + "/b",
	strings.Repeat("a", 253) + "/b", strings.Repeat("a", 254) + "/b",
}

// grammars are values for fields by their names in lower case.
var grammars = []struct {
	fields *regexp.Regexp
	values []string
}{
	{regexp.MustCompile(`^schedule$`), []string{
		"* * * * *", "99 99 * * *", "60 * * * *", "59 23 31 12 6", "0 0 31 2 *", "*/0 * * * *", "*/1 * * * *",
		"*/60 * * * *", "*/99 * * * *", "*/-1 * * * *", "*/a * * * *", "5-1 * * * *", "1-5 * * * *", "1-5/2 * * * *",
		"1-/2 * * * *", "1/2 * * * *", "1,2,3 * * * *", "1,,2 * * * *", ", * * * *", "1, * * * *", "0 0 L * *",
		"0 0 15W * *", "0 0 * * 5#3", "0 0 * * 5L", "H * * * *", "a b c d e", "0 0 0 * *", "0 0 32 * *",
		"0 0 1 0 *", "0 0 1 13 *", "0 0 * * 7", "0 0 * * 8", "0 0 * * sun", "0 0 * * SUN", "0 0 * * sun-sat",
		"0 0 * * sat-sun", "0 0 * * sunday", "0 0 1 jan *", "0 0 1 JAN-DEC *", "0 0 1 dec-jan *", "0 0 1 january *",
		"? ? ? ? ?", "0 0 ? * ?", "* * * *", "* * * * * *", "* * * * * * *", "", " ", " * * * * * ", "*  *  *  *  *",
		"*\t*\t*\t*\t*", "*\n* * * *", "* * * * *\n", "@yearly", "@annually", "@monthly", "@weekly", "@daily",
		"@midnight",
		"@hourly", "@reboot", "@Daily", "@daily ", " @daily", "@", "@every 1h", "@every 1s", "@every 0s", "@every -1h",
		"@every", "@every ", "@every 1", "@every 1d", "@every  1h", "@every 1h ", "@everyday",
		"TZ=UTC * * * * *", "CRON_TZ=UTC * * * * *", "TZ=UTC", "CRON_TZ=UTC", "TZ= * * * * *",
		"TZ=Nowhere/Land * * * * *", "CRON_TZ=Local * * * * *", "tz=UTC * * * * *", "TZ=UTC @daily", "TZ=0",
		"* * * * TZ", "TZ=../etc/passwd * * * * *",
		"TZ=UTC  * * * * *", "CRON_TZ=UTC\t* * * * *", " TZ=UTC * * * * *", "-1 * * * *", "+1 * * * *", "1.5 * * * *",
		"0x1 * * * *", "١ * * * *", "1-2-3 * * * *", "*/2/2 * * * *", "*-5 * * * *", "5-* * * * *", "**/2 * * * *",
		"* * * * *#",
		"18446744073709551616 * * * *", "9223372036854775807 * * * *", "*/9223372036854775807 * * * *",
		"00 00 01 01 00", "007 * * * *", "0-59 0-23 1-31 1-12 0-6", "0-60 * * * *", "* 0-24 * * *", "\x00 * * * *",
		"* * * * *\x00"}},
	{regexp.MustCompile(`timezone$`),
		[]string{"UTC", "utc", "Utc", "Etc/UTC", "Europe/Berlin", "europe/berlin", "Europe/berlin", "Local", "local",
			"LOCAL", "", "Nowhere/Land", "../etc/localtime", "Europe/../UTC", "/UTC", "UTC/", "Europe//Berlin", "GMT+1",
			"Etc/GMT+1",
			"Etc/GMT-14", "EST", "EST5EDT", "US/Pacific", "-UTC", "U TC", "America/Argentina/Buenos_Aires",
			"posixrules",
			"Factory", "tzdata.zi", "zone.tab", "right/UTC", "posix/UTC", "leapseconds", "America", "CET", "Z",
			"+01:00", "abcdefghijklmno", "abcdefghijklmn"}},
	{regexp.MustCompile(`(^|[a-z])ips?$|^ip|nameservers|address(es)?$|portals?$|targetportal|^hosts$|^server$`),
		[]string{
			"1.2.3.4", "01.02.03.04", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.4/32", "0.0.0.0", "127.0.0.1",
			"169.254.1.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "0x1.2.3.4", "16909060", "1.2.3.4 ",
			" 1.2.3.4", "1.2.3.4\n",
			"::1", "::", "::ffff:1.2.3.4", "fe80::1", "fe80::1%eth0", "fe80::1%25eth0", "2001:DB8::1",
			"2001:db8:0:0:0:0:0:1", "2001:db8::0001", "[::1]", "ff02::1", "1:2:3:4:5:6:7:8:9", "::1/128",
			"64:ff9b::1.2.3.4", ":::",
			"1.2.3.4:80", "[::1]:80", "host:80", "10.96.0.1", "10.96.0.0", "10.96.255.255", "10.97.0.1", "fd00::1"}},
	{regexp.MustCompile(`cidrs?$|ranges$|^except$|cidrs`), []string{
		"10.0.0.0/8", "10.1.2.3/8", "10.0.0.0/33", "10.0.0.0/08", "010.0.0.0/8", "10.0.0.0/-1", "10.0.0.0/+8",
		"10.0.0.0", "10.0.0.0/", "/8", "10.0.0.0/8/8", " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0/255.0.0.0", "0.0.0.0/0",
		"1.2.3.4/32", "10.0.0/8",
		"::/0", "fd00::/8", "fd00::1/8", "FD00::/8", "fd00:0::/8", "::ffff:1.2.3.0/120", "::ffff:0:0/96",
		"fe80::%eth0/64", "fd00::/129", "2001:db8::/32,10.0.0.0/8", "10.0.0.0/8,"}},
	{regexp.MustCompile(
		`path$|^mountpath|^subpath|dir$|^key$|^items$|socket|^filename|profile$|paths$|^fspath|^terminationmessagepath`), []string{
		"..", "../a", "a/..", "a/../b", "/..", "/a/../b", "..a", "a..", "a..b/c", "..a/b", "./a", ".", "/", "//", "/a",
		"/a/", "/a//b", "a/", "a", `C:\a`, "C:/a", "C:", `\\a\b`, `..\a`, `a\..\b`, "/a:b", "a:b", "/a b", "/a\x00b",
		"/a\nb", "/dev/x", "/proc/1", "/a?b=c", "/a#b", "/%2e%2e/a", "~", "$(A)",
		"$HOME", "/" + strings.Repeat("a", 300), strings.Repeat("a/", 600) + "b", "...", "/a/.../b", ".../a", "/a/.",
		"/dev/termination-log", "/dev/../x"}},
	{regexp.MustCompile(`^image$|^reference$`), []string{
		"a", "a:b", "a:b:c", "A/b", "a/B", "a//b", "localhost:5000/a", "a:TAG", "a:" + strings.Repeat("t", 128),
		"a:" + strings.Repeat("t", 129), "a@sha256:" + strings.Repeat("0", 64), "a@sha256:" + strings.Repeat("0", 63),
		"a@sha256:zz", "a@", "a:", "a:latest@sha256:" + strings.Repeat("0", 64),
		"-a", "a-", "_a", "a__b", "a___b", "a..b", "a.b", "a.b/c", "A.b/c", "[::1]:5000/a", " a", "a ", "a\n", "a b",
		"http://a/b", "docker://a", "a/b/c/d:e", "a:b/c", "a:-b", "a:.b", "a:_b", "a@md5:" + strings.Repeat("0", 32),
		"a@sha512:" + strings.Repeat("0", 128),
		"a@b+c:" + strings.Repeat("0", 64), strings.Repeat("0", 64), "sha256:" + strings.Repeat("0", 64), "é",
		strings.Repeat("a", 255), strings.Repeat("a", 256), "b/" + strings.Repeat("a", 300), "", "$(IMAGE)"}},
	{regexp.MustCompile(`^imagepullpolicy$|pullpolicy$`),
		[]string{"Always", "always", "Never", "IfNotPresent", "ifnotpresent", "IfNotPresent ", ""}},
	{regexp.MustCompile(`url$|uri$|^endpoint|^externalid$|registry`), []string{
		"http://a", "https://a", "https://a/", "https://a/b?c", "https://a/b#f", "https://u@a", "https://u:p@a",
		"ftp://a", "https://", "https:///a", "//a", "a", "a:80", "https://a:99999", "https://a:0", "https://[::1]:80/x",
		"https://a b", "https://a/%zz", "https://a/b c", "HTTPS://a", "https://é", "https:a", "unix:///a", " https://a",
		"https://a/../b", "https://127.0.0.1", "https://localhost/x", "https://a?", "https://a#", "javascript:alert(1)",
		"https://a\nb"}},
	{regexp.MustCompile(`fieldpath$`), []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations",
		"metadata.labels['a']", "metadata.labels[a]", "metadata.labels['']", "metadata.labels['a/b']",
		"metadata.labels['a b']", "metadata.labels['A_B']", "metadata.annotations['A_B']",
		"metadata.annotations['a/B']", "metadata.annotations['a b']",
		"metadata.annotations['a']['b']", "metadata.name['a']", "metadata.labels['a", "metadata.labels[\"a\"]",
		"metadata.annotations['" + strings.Repeat("a", 64) + "']", "metadata.annotations['k'']",
		"metadata.ownerReferences", "metadata.generation", "metadata.deletionTimestamp", "spec.nodeName",
		"spec.serviceAccountName", "spec.restartPolicy",
		"spec.hostNetwork", "spec.schedulerName", "status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs",
		"status.phase", "status.nominatedNodeName", "spec", "", "metadata", ".metadata.name", "Metadata.name",
		"metadata.name ", "{.metadata.name}", "metadata.labels.a"}},
	{regexp.MustCompile(`^resource$|^resourcename$`), []string{
		"limits.cpu", "limits.memory", "requests.cpu", "requests.memory", "limits.ephemeral-storage",
		"requests.ephemeral-storage", "limits.hugepages-2Mi", "requests.hugepages-1Gi", "limits.hugepages-",
		"limits.hugepages-x", "limits.hugepages-3Mi", "limits.nvidia.com/gpu", "requests.storage", "cpu", "memory",
		"limits", "limits.", "CPU",
		"limits.CPU", "pods", "hugepages-2Mi", "hugepages-", "hugepages-2", "hugepages-0", "hugepages--1Mi",
		"hugepages-2Mi-x", "nvidia.com/gpu", "kubernetes.io/x", "x.kubernetes.io/y", "requests.example.com/x",
		"example.com/", "/x", "example.com/x/y", "Example.com/x", "attachable-volumes-x", "storage", "requests.cpu ",
		"count/pods"}},
	{regexp.MustCompile(`^operator$|^op$`),
		[]string{"In", "NotIn", "Exists", "DoesNotExist", "Lt", "Gt", "Le", "Ge", "Equal", "NotEqual", "in", "exists",
			"equal", "lt", "==", "=", "!=", "Exists ", ""}},
	{regexp.MustCompile(`expression|^validation$|^rule$|^message$|^cel$`), []string{
		"true", "false", "1", "1 == 1", `"a"`, "object", "object.x", "object.metadata.name == 'a'", "oldObject == null",
		"self", "self.x", "request.name", "params.x", "variables.x", "has(object.metadata)", "syntax error(",
		"a.all(b,", "[1,2].all(x, x > 0)", "1/0 == 1", "unknown()", "object.spec.replicas > 5",
		"authorizer.path('/x').check('get').allowed()",
		"namespaceObject.metadata.name == 'a'", "request.userInfo.username == 'a'", "''", "null", "{}", "[]",
		"Object{}", "JSONPatch{}", "quantity('1') == quantity('1')", "ip('1.2.3.4').family() == 4",
		"cidr('10.0.0.0/8').containsIP('10.0.0.1')", "'a'.matches('[')", "'a'.matches('a+')",
		"semver('1.0.0').major() == 1", "device.driver == 'a'", "device.attributes['a.b'].c == 1", "true // x",
		"true\n&& false", "true\x00"}},
	{regexp.MustCompile(
		`^host(s|name|names)?$|^subdomain$|externalname|searches|dnsname|domain|servicename$|^name$|ingressclassname|classname$|schedulername`), []string{
		"*", "*.a", "*.a.b", "a.*", "a.*.b", "*.*.a", "*.com", "*a.b", "A.b", "a.b.", "a.b..", ".a.b", "-a.b", "a-.b",
		"a_b.c", "_a._tcp.b", "1.2.3.4", "::1", "localhost", "1a", "1.a", "xn--a", strings.Repeat("a", 63) + ".b",
		strings.Repeat("a", 64) + ".b", "a:80", "cluster.local", "svc.cluster.local."}},
	{regexp.MustCompile(`^name$|^names$|envs?$`),
		[]string{"a=b", "1a", "a b", "A_B", "A.B", "A-B", "=", "$", "A\x00", "A\n", "PATH", "0", "a'b",
			"kernel.shm_rmid_forced", "kernel/shm_rmid_forced", "net/ipv4/ip_forward", "net.ipv4.conf.eth0/1.x",
			"net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0.x", "Kernel.a", "a..b", "a/b.c", "net.core.somaxconn",
			"kernel.msgmax", "kernel.sem", "fs.mqueue.x",
			"fs/mqueue/x", "vm.swappiness", "/kernel/a", "kernel.", "kernel/", "kernel.a-b", "kernel._a", "kernel.a_"}},
	{regexp.MustCompile(`^value$|^values$`),
		[]string{"1", "-1", "+1", "01", "1.5", "9223372036854775807", "9223372036854775808", "1\x00",
			"1\x00/etc/x\x00y", "1\n", " 1", "a b", "é", "a/b", "$(A)", "", "-", "0x1", "1e3"}},
	{regexp.MustCompile(`topologykey|labelkey|^key$|keys$`),
		[]string{"a b", "kubernetes.io/hostname", "Kubernetes.io/x", "a/b/c", "/a", "a/", "A", "a_b", "",
			"topology.kubernetes.io/zone", "a.b/" + strings.Repeat("c", 63), "a.b/" + strings.Repeat("c", 64),
			"node.kubernetes.io/", "metadata.name", "..data", "..", ".", "a..b", "a/b", ".a"}},
	{regexp.MustCompile(
		`finalizers|conditiontype|^type$|signername|^driver(name)?$|provisioner|^attacher|controller(name)?$|protocol$|usages|claimname|managedby|lifecycle`), []string{
		"a", "kubernetes", "a/b", "A/B", "a/b/c", "foregroundDeletion", "orphan", "kubernetes.io/pvc-protection",
		"kubernetes.io/x", "x.kubernetes.io/y", "k8s.io/x", "example.com/a", "example.com/A", "example.com/a.b",
		"example.com/a:b", "Example.com/a", "example/a", "example.com/", "example.com/a b",
		"kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client",
		"tcp", "TCP", "UDP", "SCTP", "Tcp", "TCP ", "HTTP", "http", "kubernetes.io/h2c", "https", "IPv4", "IPv6",
		"FQDN", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "None", "clusterip", "client auth",
		"digital signature", "any", "RuntimeDefault", "Localhost", "Unconfined", "Container", "Pod", "Opaque",
		"bootstrap.kubernetes.io/token", "kubernetes.io/tls", "kubernetes.io/ssh-auth", "kubernetes.io/basic-auth",
		"kubernetes.io/dockercfg"}},
	{regexp.MustCompile(
		`^verbs$|^apigroups$|^apiversions$|^resources$|nonresourceurls|resourcenames|^operations$|^apigroup$|^apiversion$|^kind$|^group$`), []string{
		"*", "**", "*/*", "pods", "pods/*", "*/status", "pods/status", "pods/", "/status", "a/b/c", "/*", "/a*b",
		"/a/*", "/a", "get", "GET", "CREATE", "create", "CONNECT", "apps", "apps.", "v1", "V1", "v1beta1", "apps/v1",
		"Pod", "Node", "User", "Group", "ServiceAccount", "pod", "rbac.authorization.k8s.io", ""}},
	{regexp.MustCompile(`^annotations$|^labels$|^matchlabels$|selector$`),
		[]string{"a/b", "a.b/c", "A/b", "a/B", "a b/c", "a/b/c", "kubernetes.io/x", "", "é", "a\x00",
			strings.Repeat("a", 253) + "/b", strings.Repeat("a", 254) + "/b"}},
	{regexp.MustCompile(
		`policy$|^mode$|^phase$|^reason$|^effect$|^scope$|scopes$|accessmodes|^status$|^protocol$|^sideeffects$|^runtimeclass|^dnspolicy|^os$`), []string{
		"Always", "OnFailure", "Never", "Recreate", "RollingUpdate", "OnDelete", "OrderedReady", "Parallel", "Allow",
		"Forbid", "Replace", "Retain", "Delete", "Recycle", "Immediate", "WaitForFirstConsumer", "ReadWriteOnce",
		"ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod", "Filesystem", "Block", "ClusterFirst", "Default", "None",
		"ClusterFirstWithHostNet",
		"Cluster", "Local", "SingleStack", "PreferDualStack", "RequireDualStack", "NoSchedule", "PreferNoSchedule",
		"NoExecute", "True", "False", "Unknown", "File", "FallbackToLogsOnError", "Honor", "Ignore", "DoNotSchedule",
		"ScheduleAnyway", "Exact", "Equivalent", "Fail", "Some", "NoneOnDryRun", "PreemptLowerPriority",
		"OnRootMismatch", "MountOption", "Recursive", "Merge", "Strict",
		"Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity",
		"VolumeAttributesClass", "Running", "Pending", "Succeeded", "Failed", "linux", "windows", "IfHealthyBudget",
		"AlwaysAllow", "TerminatingOrFailed", "DeletePeriod"}},
}

// quantities, numbers and so on by type.
var (
	quantities = []string{"1n", "999n", "1u", "1m", "0.5", "0.0005", "1e3", "1E3", "1Ki", "1K", "1k", "-0", "+1",
		"1.1Gi", "1.5", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e18", "1e19", "1e-9",
		"1e-10", "1Pi", "8Ei", "16Ei", "10E", "100m", "0.1m", "2Mi", "3Mi", "2097152", "1025", "4096", "1e100", "0Gi",
		"0m", "5.", ".5"}
	intStrings = []any{0, 1, -1, 65535, 65536, 2147483647, "http", "HTTP", "http-", "-http", "ht--tp", "1234", "0",
		"a1", "1a", strings.Repeat("a", 15), strings.Repeat("a", 16), "a_b", "0%", "100%", "101%", "-0%", "-1%", "1.5%",
		"%", "10 %", "+1%", "1%%", "10", "00%", "9999999999%", "a%", "é", "\x00", " ", "10%\n", "80"}
	numbers = []int64{0, 1, -1, 2, 5, 8, 9, 10, 14, 20, 21, 24, 32, 63, 64, 99, 100, 101, 128, 129, 255, 256, 257,
		511, 512, 513, 600, 1000, 1001, 1023, 1024, 1025, 3599, 3600, 4096, 10000, 10001, 32767, 32768, 65535, 65536,
		86399, 86400, 86401, 100000, 100001, 1000000, 100000000, 1000000000, 1000000001, 2000000000, 2000000001,
		2147483647, -2147483648}
	durations = []string{"1h", "1ns", "1.5h", "0", "10m", "9m59s", "876600h", "2562047h47m16.854775807s", "-1ns"}
	blobs     = []string{"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==",
		"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
		"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KQUFBQQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K", "e30=",
		"eyJhdXRocyI6e319", "eyJhdXRocyI6MX0=", "AA=="}
	resourceNames = []string{"cpu", "memory", "hugepages-2Mi", "hugepages-", "hugepages-2", "hugepages-3Mi",
		"hugepages-1.5Mi", "hugepages-0", "hugepages--2Mi", "requests.cpu", "limits.memory", "requests.hugepages-2Mi",
		"limits.hugepages-2Mi", "kubernetes.io/x", "x.kubernetes.io/y", "nvidia.com/gpu", "example.com/x",
		"Example.com/X", "example.com/", "/x", "a/b/c", "pods", "storage",
		"attachable-volumes-x", "ephemeral-storage", "requests.example.com/x", "limits.example.com/x",
		"requests.requests.example.com/x", "count/pods", "count/a.b", "count/a.b.c", "count/", "cpu ", "CPU", "gpu",
		"services.nodeports", "services", "configmaps", "x.storageclass.storage.k8s.io/requests.storage",
		"example.com/" + strings.Repeat("a", 63), "example.com/" + strings.Repeat("a", 64), "a b", "a\x00",
		"é", "", "deviceclass.resource.kubernetes.io/x", "bronze.deviceclass.resource.k8s.io/devices"}
)

// podNotes are annotations that mean something to the kinds that have them.
var podNotes = []map[string]any{
	{"controller.kubernetes.io/pod-deletion-cost": "5"}, {"controller.kubernetes.io/pod-deletion-cost": "+5"},
	{"controller.kubernetes.io/pod-deletion-cost": "05"}, {"controller.kubernetes.io/pod-deletion-cost": "-05"},
	{"controller.kubernetes.io/pod-deletion-cost": ""}, {"controller.kubernetes.io/pod-deletion-cost": "2147483648"},
	{"controller.kubernetes.io/pod-deletion-cost": "x"},
	{"scheduler.alpha.kubernetes.io/tolerations": "x"},
	{"scheduler.alpha.kubernetes.io/tolerations": `[{"key":"a b"}]`},
	{"scheduler.alpha.kubernetes.io/tolerations": `[{"key":"a","operator":"Gt","value":"1"}]`},
	{"scheduler.alpha.kubernetes.io/tolerations": `[]`},
	{"seccomp.security.alpha.kubernetes.io/pod": "runtime/default"},
	{"seccomp.security.alpha.kubernetes.io/pod": "docker/default"},
	{"seccomp.security.alpha.kubernetes.io/pod": "unconfined"},
	{"seccomp.security.alpha.kubernetes.io/pod": "localhost/../x"},
	{"seccomp.security.alpha.kubernetes.io/pod": "localhost/x"}, {"seccomp.security.alpha.kubernetes.io/pod": "x"},
	{"container.seccomp.security.alpha.kubernetes.io/c": "runtime/default"},
	{"container.seccomp.security.alpha.kubernetes.io/c": "x"},
	{"container.seccomp.security.alpha.kubernetes.io/none": "localhost/x"},
	{"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"},
	{"container.apparmor.security.beta.kubernetes.io/c": "unconfined"},
	{"container.apparmor.security.beta.kubernetes.io/c": "localhost/x"},
	{"container.apparmor.security.beta.kubernetes.io/c": "localhost/"},
	{"container.apparmor.security.beta.kubernetes.io/c": "x"}, {"container.apparmor.security.beta.kubernetes.io/c": ""},
	{"container.apparmor.security.beta.kubernetes.io/none": "unconfined"},
	{"scheduler.alpha.kubernetes.io/critical-pod": ""}, {"security.alpha.kubernetes.io/sysctls": "a=b"},
	{"security.alpha.kubernetes.io/unsafe-sysctls": "a=b"}, {"kubernetes.io/config.mirror": "x"},
	{"volume.beta.kubernetes.io/storage-class": "A b"}, {"volume.beta.kubernetes.io/mount-options": "x"},
	{"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"},
	{"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8, x"},
	{"service.beta.kubernetes.io/load-balancer-source-ranges": ""}, {"service.kubernetes.io/topology-mode": "x"},
	{"service.kubernetes.io/topology-aware-hints": "Auto"},
	{"kubernetes.io/ingress.class": "a b"}, {"kubernetes.io/ingress.class": "a"},
	{"kubernetes.io/service-account.name": ""}, {"endpoints.kubernetes.io/over-capacity": "x"},
	{"node.alpha.kubernetes.io/ttl": "x"}, {"scheduler.alpha.kubernetes.io/preferAvoidPods": "x"},
	{"api-approved.kubernetes.io": "x"},
	{"batch.kubernetes.io/cronjob-scheduled-timestamp": "x"}, {"kubernetes.io/psp": "x"},
}

// questions returns the changes of an object from its fields' grammar; in the status only those that
// only matches.
func questions(kind string, external any, base map[string]any, only *regexp.Regexp) []question {
	g := &grammar{kind: kind, only: only}
	g.walk("", reflect.TypeOf(external).Elem(), base)
	return g.all
}

type grammar struct {
	kind string
	only *regexp.Regexp
	all  []question
}

func (g *grammar) add(kind, path, id string, value any, always bool) {
	if g.only == nil || g.only.MatchString(path) {
		g.all = append(g.all, question{op: op{kind, path, value}, id: fmt.Sprintf("%s=%v", id, value), always: always})
	}
}

// walk makes questions for each field of the structs of a value.
func (g *grammar) walk(path string, t reflect.Type, value any) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if isScalar(t) {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		if t.Kind() == reflect.Map {
			for _, k := range sortedKeys(v) {
				g.walk(path+"/"+escape(k), t.Elem(), v[k])
			}
			return
		}
		if t.Kind() != reflect.Struct {
			return
		}
		for _, f := range fieldsOf(t) {
			at := path + "/" + f.name
			if untried[at] && (g.only == nil || at != "/status") {
				continue
			}
			id := t.PkgPath() + "." + t.Name() + "." + f.name
			if t.Name() == "ObjectMeta" &&
				(f.name == "name" || f.name == "annotations" && !strings.Contains(path, "/template/")) ||
				t.Name() == "TypedLocalObjectReference" {
				id = g.kind + " " + id
			}
			inner, there := v[f.name]
			if later.MatchString(path) && !there {
				continue
			}
			kind := "add"
			if there {
				kind = "replace"
			}
			g.field(kind, at, id, f)
			if there {
				g.walk(at, f.t, inner)
			}
		}
	case []any:
		for i, x := range v {
			g.walk(fmt.Sprintf("%s/%d", path, i), t.Elem(), x)
		}
	}
}

var resourceList = reflect.TypeFor[corev1.ResourceList]()

// field makes questions with values that a field may have.
func (g *grammar) field(kind, at, id string, f fieldOf) {
	t := f.t
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	own, general := texts(f.name)
	switch {
	case t == quantity:
		for _, q := range quantities {
			g.add(kind, at, id, q, false)
		}
	case t == intOrString:
		for _, v := range intStrings {
			g.add(kind, at, id, v, false)
		}
	case t == duration:
		for _, v := range durations {
			g.add(kind, at, id, v, false)
		}
	case t == timeType, t == microTime, t == extension:
	case t == resourceList:
		for _, name := range resourceNames {
			g.add(kind, at, id, map[string]any{name: "1"}, false)
			g.add(kind, at, id, map[string]any{name: "1500m"}, false)
		}
		for _, q := range quantities {
			for _, name := range []string{"cpu", "memory", "example.com/x", "hugepages-2Mi", "ephemeral-storage",
				"pods", "storage"} {
				g.add(kind, at, id, map[string]any{name: q}, false)
			}
		}
	case t.Kind() == reflect.String:
		for _, v := range own {
			g.add(kind, at, id, v, f.name == "schedule" || f.name == "timeZone")
		}
		for _, v := range general {
			g.add(kind, at, id, v, false)
		}
	case t.Kind() == reflect.Int32 || t.Kind() == reflect.Int64 || t.Kind() == reflect.Int:
		for _, v := range numbers {
			g.add(kind, at, id, v, false)
		}
		if t.Kind() != reflect.Int32 {
			for _, v := range []int64{4294967295, 4294967296, 4294967297, 9223372036854775807} {
				g.add(kind, at, id, v, false)
			}
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		for _, v := range blobs {
			g.add(kind, at, id, v, false)
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		for _, v := range own {
			g.add(kind, at, id, []any{v}, false)
		}
		for _, v := range general {
			g.add(kind, at, id, []any{v}, false)
		}
	case strings.HasSuffix(id, "ObjectMeta.annotations"):
		for _, v := range podNotes {
			g.add(kind, at, id, v, true)
		}
		fallthrough
	case t.Kind() == reflect.Map &&
		(t.Elem().Kind() == reflect.String || t.Elem().Kind() == reflect.Slice &&
			t.Elem().Elem().Kind() == reflect.Uint8):
		for _, v := range own {
			g.add(kind, at, id, map[string]any{v: "AAAA"}, false)
		}
		for _, v := range general {
			g.add(kind, at, id, map[string]any{v: "AAAA"}, false)
			if t.Elem().Kind() == reflect.String {
				g.add(kind, at, id+".value", map[string]any{"key": v}, false)
			}
		}
	}
}

// texts returns the strings for a field: those of its own grammars, and those for any.
func texts(name string) (own, general []string) {
	name = strings.ToLower(name)
	for _, g := range grammars {
		if g.fields.MatchString(name) {
			own = append(own, g.values...)
		}
	}
	return own, anything
}
