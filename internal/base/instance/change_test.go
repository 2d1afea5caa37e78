package instance

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestEveryFlagIsClassified: a new flag needs a rule about its changes.
func TestEveryFlagIsClassified(t *testing.T) {
	rules := changeRules()
	for f := range reflect.TypeFor[Flags]().Fields() {
		r, ok := rules[f.Name]
		if !ok {
			t.Errorf("Flags.%s: may another start have another value? Say so in changeRules", f.Name)
		} else if !strings.HasPrefix(r.flag, "--") {
			t.Errorf("Flags.%s has no flag", f.Name)
		}
		delete(rules, f.Name)
	}
	for name := range rules {
		t.Errorf("there is no Flags.%s any more", name)
	}
}

func TestChange(t *testing.T) {
	base, err := Derive(Flags{}, "host")
	if err != nil {
		t.Fatal(err)
	}
	with := func(set func(*Flags)) Flags {
		f := base.Flags
		set(&f)
		return f
	}
	etcd := func(urls ...string) Flags { return with(func(f *Flags) { f.EtcdServers = urls }) }
	for name, c := range map[string]struct {
		old, now Flags
		idle     string // the flag that is rejected when no pods run
		busy     string // and when pods run
	}{
		"nothing":              {base.Flags, base.Flags, "", ""},
		"nothing is known":     {Flags{}, base.Flags, "", ""},
		"data directory moved": {base.Flags, with(func(f *Flags) { f.DataDir = "/x" }), "", "--data-dir"},
		"to etcd":              {base.Flags, etcd("http://a"), "--etcd-servers", "--etcd-servers"},
		"from etcd":            {etcd("http://a"), base.Flags, "--etcd-servers", "--etcd-servers"},
		"another etcd": {etcd("http://a", "http://b"), etcd("http://c"), "--etcd-servers",
			"--etcd-servers"},
		"another member of etcd": {etcd("http://a", "http://b"), etcd("http://b", "http://c"), "", ""},
		"keys forgotten": {with(func(f *Flags) { f.Encryption = "/e" }), base.Flags,
			"--encryption-provider-config", "--encryption-provider-config"},
		"keys in another file": {with(func(f *Flags) { f.Encryption = "/e" }),
			with(func(f *Flags) { f.Encryption = "/f" }), "", ""},
		"keys for the first time": {base.Flags, with(func(f *Flags) { f.Encryption = "/e" }), "", ""},
		"to another runtime": {base.Flags, with(func(f *Flags) { f.RuntimeEndpoint = "unix:///c" }), "",
			"--runtime-endpoint"},
		"back to carob's": {with(func(f *Flags) { f.RuntimeEndpoint = "unix:///c" }), base.Flags, "",
			"--runtime-endpoint"},
		"another network": {base.Flags, with(func(f *Flags) { f.CNIConfDir = "/etc/cni" }), "",
			"--cni-conf-dir"},
		"systemd": {base.Flags, with(func(f *Flags) { f.CgroupDriver = "systemd" }), "",
			"--cgroup-driver"},
		"cgroupfs, said": {base.Flags, with(func(f *Flags) { f.CgroupDriver = "cgroupfs" }), "", ""},
		"standalone":     {base.Flags, with(func(f *Flags) { f.Standalone = true }), "", "--standalone"},
		"no more standalone": {with(func(f *Flags) { f.Standalone = true }), base.Flags, "",
			"--standalone"},
		"another name": {base.Flags, with(func(f *Flags) { f.NodeName = "other" }), "", "--node-name"},
		"another range of pods": {base.Flags, with(func(f *Flags) { f.PodCIDR = "10.1.0.0/16" }), "",
			"--pod-cidr"},
		"another range of services": {base.Flags, with(func(f *Flags) { f.ServiceCIDR = "10.1.0.0/16" }),
			"--service-cidr", "--service-cidr"},
		"a range of a second family": {base.Flags, with(func(f *Flags) { f.ServiceCIDR = "10.96.0.0/16,fd00:96::/112" }),
			"", ""},
		"a second family before it": {base.Flags, with(func(f *Flags) { f.ServiceCIDR = "fd00:96::/112,10.96.0.0/16" }),
			"--service-cidr", "--service-cidr"},
		"the same range, in disguise": {base.Flags, with(func(f *Flags) { f.ServiceCIDR = "10.96.3.4/16" }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, x := range []struct {
				facts Facts
				want  string
			}{{Facts{}, c.idle}, {Facts{Pods: true}, c.busy}} {
				got := Change(c.old, c.now, x.facts)
				switch {
				case x.want == "" && len(got) > 0:
					t.Errorf("%+v: refused: %v", x.facts, ChangeError(got))
				case x.want != "" &&
					(len(got) != 1 || got[0].Flag != x.want || got[0].Reason == "" || got[0].Way == ""):
					t.Errorf("%+v: %+v, want %s refused", x.facts, got, x.want)
				case x.want != "" && !strings.Contains(ChangeError(got).Error(), "--force"):
					t.Errorf("no way out: %v", ChangeError(got))
				}
			}
		})
	}
}

// The range of Services is derived from the data directory: a copy of one at another path needs the flag with its
// range, and the message names this flag.
func TestChangeOfMovedDirectory(t *testing.T) {
	old, err := Derive(Flags{DataDir: "/srv/a"}, "host")
	if err != nil {
		t.Fatal(err)
	}
	now, err := Derive(Flags{DataDir: "/srv/b"}, "host")
	if err != nil {
		t.Fatal(err)
	}
	text := ChangeError(Change(old.Flags, now.Flags, Facts{})).Error()
	for _, want := range []string{"which was /srv/a", "start with --service-cidr " + old.Flags.ServiceCIDR} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing: %s", want, text)
		}
	}
	withRange := now.Flags
	withRange.ServiceCIDR = old.Flags.ServiceCIDR
	if got := Change(old.Flags, withRange, Facts{}); len(got) > 0 {
		t.Errorf("refused with the range of before: %v", ChangeError(got))
	}
}

// TestStandaloneHasNoServer: flags of parts that do not run are refused.
func TestStandaloneHasNoServer(t *testing.T) {
	if _, err := Derive(Flags{Standalone: true, MaxPods: 5}, "host"); err != nil {
		t.Fatal(err)
	}
	for flag, f := range map[string]Flags{
		"--etcd-servers": {EtcdServers: []string{"http://a"}}, "--gateway-http": {GatewayHTTP: ":80"},
		"--scheduler-config": {Scheduler: "/dev/null"}, "--load-balancer-pool": {LoadBalancerPool: "192.0.2.0/28"},
	} {
		f.Standalone = true
		if _, err := Derive(f, "host"); err == nil || !strings.Contains(err.Error(), flag+": it has no effect") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestFreeFlagsMayChange: all flags without a rule may change at the same time.
func TestFreeFlagsMayChange(t *testing.T) {
	old, now := Flags{}, Flags{}
	var free []string
	v := reflect.ValueOf(&now).Elem()
	for name, r := range changeRules() {
		if r.refuse != nil {
			continue
		}
		free = append(free, name)
		switch f := v.FieldByName(name); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int:
			f.SetInt(7)
		default: // other kinds keep their zero value
		}
	}
	if got := Change(old, now, Facts{Pods: true}); len(got) > 0 {
		slices.Sort(free)
		t.Errorf("of %v some are refused: %+v", free, got)
	}
}
