package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// grow makes the shell that runs it use more memory until something fails.
const grow = "x=$(head -c 64m /dev/zero | tr '\\0' x); echo ${#x}"

func limited(c *cri.ContainerConfig) {
	c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 20 << 20, MemorySwapLimitInBytes: 20 << 20}
}

func reportMemory(r *reporter) {
	p := r.pod()
	_, st := p.run("first", shell(grow), limited)
	r.note("the first process is killed", state(st))
	// oom_score_adj makes the kernel kill the child before any other process.
	child := "sh -c 'echo 1000 > /proc/self/oom_score_adj; " + strings.ReplaceAll(grow, "'", `'"'"'`) + "'"
	out, st := p.run("child", shell(child+"; echo $?; exit 3"), limited)
	r.note("a child is killed, the first ends with 3", state(st))
	r.note("a child is killed, its code", strings.TrimSpace(out))
	// Sometimes the kernel reclaims the memory of the pipe, and the child gets less than it requested.
	id := p.start("lives", shell("until "+child+" >/dev/null; [ $? = 137 ]; do :; done; echo 137; exec sleep 1000"),
		limited)
	r.until("the child was killed", func() bool { return p.output("lives", "stdout") == "137\n" })
	r.note("a child is killed, the first lives", state(r.status(id)))
	id = p.create("small", func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: 4096}
	})
	_, err := r.Runtime.StartContainer(r.Context(), &cri.StartContainerRequest{ContainerId: id})
	r.note("a limit too small for anything, start is refused", err != nil)
	if st, err := r.Runtime.ContainerStatus(r.Context(), &cri.ContainerStatusRequest{ContainerId: id}); err == nil {
		r.note("a limit too small for anything", state(st.Status))
	}
	if r.LimitPod == nil {
		return
	}
	group := r.CgroupParent(strings.ReplaceAll(r.Name(), "/", "-"))
	r.LimitPod(r.T, group, 20<<20)
	limitedPod := r.pod(func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = group })
	_, st = limitedPod.run("web", shell(grow))
	r.note("the pod's limit", state(st))
}

func reportStats(r *reporter) {
	ctx, p := r.Context(), r.pod()
	id := p.start("web", shell("head -c 300000 /dev/zero > /filled; echo ready; exec sleep 1000"))
	exited, created := p.start("exited", shell("exit 0")), p.create("created")
	r.ended(exited)
	var st *cri.ContainerStats
	r.until("use is measured", func() bool {
		resp, err := r.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: id})
		st = resp.GetStats()
		return err == nil && st.GetWritableLayer().GetUsedBytes().GetValue() >= 300000 &&
			st.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0
	})
	r.note("container", fields(st))
	for what, id := range map[string]string{"exited": exited, "created": created, "unknown": strings.Repeat("0", 64)} {
		resp, err := r.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: id})
		r.note(what, fmt.Sprint(status.Code(err), " ", fields(resp.GetStats())))
	}
	list, err := r.Runtime.ListContainerStats(ctx,
		&cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{PodSandboxId: p.id}})
	if err != nil {
		r.Fatal(err)
	}
	var ids []string
	for _, x := range list.Stats {
		ids = append(ids, x.GetAttributes().GetId())
	}
	r.note("in a list: running, exited, created", order(ids, id, exited, created))
	pod, err := r.Runtime.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: p.id})
	if err != nil {
		r.Fatal(err)
	}
	r.note("sandbox", fields(pod.Stats))
	r.note("containers in the sandbox's", len(pod.Stats.GetLinux().GetContainers()))
	_, err = r.Runtime.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: strings.Repeat("0", 64)})
	r.call("unknown sandbox", err)
	fs, err := r.Runtime.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
	if err != nil || len(fs.ImageFilesystems) == 0 {
		r.Fatalf("%v, %v", fs, err)
	}
	r.note("image file system", fields(fs.ImageFilesystems[0]))
}

func reportExec(r *reporter) {
	p := r.pod()
	id := p.start("web", shell("exec sleep 1000"))
	exited, created := p.start("exited", shell("exit 0")), p.create("created")
	r.ended(exited)
	for _, c := range []struct {
		what, id string
		cmd      []string
		timeout  int64
	}{
		{"code 3", id, []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, 10},
		{"killed by a signal", id, []string{"sh", "-c", "kill -9 $$"}, 10},
		{"a missing program", id, []string{"no-such-program"}, 10},
		{"no program", id, []string{"/etc/passwd"}, 10},
		{"no command", id, nil, 10},
		{"over its time", id, []string{"sleep", "600"}, 1},
		{"in an exited container", exited, []string{"true"}, 10},
		{"in a created container", created, []string{"true"}, 10},
		{"in no container", strings.Repeat("0", 64), []string{"true"}, 10},
		{"ids", id, []string{"id"}, 10},
		{"directory and terminal", id, []string{"sh", "-c", "pwd; tty"}, 10},
		{"capabilities", id,
			[]string{"sh", "-c",
				"grep -E '^(Cap|NoNewPrivs|Seccomp:|Sig(Blk|Ign))' /proc/self/status | tr '\\t\\n' '  '"}, 10},
		{"open files", id, []string{"sh", "-c", "ls /proc/self/fd | tr '\\n' ' '"}, 10},
	} {
		resp, err := r.Runtime.ExecSync(r.Context(),
			&cri.ExecSyncRequest{ContainerId: c.id, Cmd: c.cmd, Timeout: c.timeout})
		if err != nil {
			r.call(c.what, err)
			continue
		}
		r.note(c.what, fmt.Sprintf("code %d, %q, %q", resp.ExitCode, resp.Stdout, resp.Stderr))
	}
}

func reportLogs(r *reporter) {
	p := r.pod()
	p.run("lines", shell("echo one; printf 'two\\n\\nfour\\n'; printf part"))
	p.run("none", shell("exit 0"))
	p.run("long", shell("printf '%020000d\\n' 7"))
	for _, name := range []string{"lines", "none", "long"} {
		var lines []string
		for _, l := range p.log(name) {
			text := fmt.Sprintf("%q", l.text)
			if len(l.text) > 100 {
				text = fmt.Sprint(len(l.text), " bytes")
			}
			lines = append(lines, fmt.Sprint(l.stream, map[bool]string{true: " F ", false: " P "}[l.full], text))
		}
		r.note(name, strings.Join(lines, ", "))
	}
}

func reportUpdate(r *reporter) {
	p := r.pod()
	running, exited, created := p.start("running", shell("exec sleep 1000")), p.start("exited", shell("exit 0")),
		p.create("created")
	r.ended(exited)
	for what, id := range map[string]string{"running": running, "exited": exited, "created": created,
		"unknown": strings.Repeat("0", 64)} {
		_, err := r.Runtime.UpdateContainerResources(r.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: id,
			Linux: &cri.LinuxContainerResources{CpuShares: 512, CpuPeriod: 50000, CpuQuota: 25000,
				MemoryLimitInBytes: 40 << 20}})
		r.call(what, err)
		if st, err := r.Runtime.ContainerStatus(r.Context(), &cri.ContainerStatusRequest{ContainerId: id}); err == nil {
			res := st.Status.GetResources().GetLinux()
			r.note(what+", as its status has it",
				fmt.Sprint(res.GetCpuShares(), " ", res.GetCpuQuota(), "/", res.GetCpuPeriod(), " ",
					res.GetMemoryLimitInBytes()))
		}
	}
}

// look prints what a process finds in its environment, one line for each item.
const look = `
ls /proc/1/fd > /tmp/files
note() { echo "$1=$(tr '\n\t' '  ' | sed 's/ *$//')"; }
env | grep -v ^SHLVL | sort | note environment
id | note ids
(pwd; umask) | note "directory, umask"
grep -E '^(Cap|NoNewPrivs|Seccomp:|Sig(Blk|Ign))' /proc/self/status | note process
cut -d' ' -f1,4,5,6 /proc/1/stat | note "pid, parent, group, session of the first"
cat /proc/self/oom_score_adj | note "oom score"
note "open files" < /tmp/files
for i in 0 1 2; do readlink /proc/1/fd/$i | sed 's/:.*//'; done | note streams
(cd /dev; ls -d *) | note devices
(cd /dev; stat -c '%n %a %u:%g' null tty ptmx shm full) | note "device modes"
for l in fd stdin stdout core ptmx; do readlink /dev/$l; done | note "device links"
awk '$2 !~ "^/sys/fs/cgroup" && $2 != "/" {n = split($4, o, ","); s = ""; for (i = 1; i <= n; i++) if (o[i] ~ /^(ro|rw|nosuid|nodev|noexec)$/) s = s "," o[i]; t = ($2 ~ "^/(etc/|given)") ? "file" : $3; print $2, t, substr(s, 2)}' /proc/mounts | sort | tr '\n' ';' | note mounts
awk '$2 == "/" {print $3, substr($4, 1, 2)}' /proc/mounts | note root
for f in kcore keys timer_list sched_debug; do [ -e /proc/$f ] && echo $f $(head -c 10 /proc/$f 2>/dev/null | wc -c); done | note "masked files"
for d in acpi scsi asound; do [ -d /proc/$d ] && echo $d $(ls /proc/$d | wc -l); done | note "masked directories"
(cat /proc/sys/net/ipv4/ip_unprivileged_port_start; cat /proc/sys/net/ipv4/ping_group_range) | note "sysctls of the network"
(hostname; cat /etc/hostname) | sed "s/$(hostname)/NAME/" | note "host name"
ulimit -c | note "core limit"
`

func (r *reporter) look(p *pod, change ...containerOption) {
	r.Helper()
	out, st := p.run("look", append([]containerOption{shell(look), func(c *cri.ContainerConfig) {
		c.Linux.Resources.OomScoreAdj = 500
		c.Linux.SecurityContext.MaskedPaths = []string{"/proc/kcore", "/proc/keys", "/proc/timer_list",
			"/proc/sched_debug", "/proc/acpi", "/proc/scsi", "/proc/asound"}
		c.Linux.SecurityContext.ReadonlyPaths = []string{"/proc/sys", "/proc/irq", "/proc/bus"}
	}}, change...)...)
	if st.ExitCode != 0 {
		r.Fatalf("code %d: %s", st.ExitCode, out)
	}
	out = strings.ReplaceAll(out, p.config.Metadata.Name, "NAME")
	if all := lastCapability(); all != "" {
		out = strings.ReplaceAll(out, all, "ALL")
	}
	for line := range strings.Lines(strings.TrimSpace(out)) {
		what, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		r.note(what, value)
	}
}

// lastCapability is the set of all capabilities of this kernel.
func lastCapability() string {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return ""
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%016x", uint64(1)<<(n+1)-1)
}

func reportView(r *reporter) { r.look(r.pod()) }

func reportPrivileged(r *reporter) {
	p := r.pod(func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	dir := r.TempDir()
	r.look(p, func(c *cri.ContainerConfig) {
		c.Linux.SecurityContext.Privileged = true
		c.Args[0] = strings.Replace(c.Args[0], "(cd /dev; ls -d *) | note devices\n", "", 1) // the host's
		c.Mounts = []*cri.Mount{{HostPath: filepath.Clean(dir), ContainerPath: "/given", Readonly: true}}
	})
	plain := r.pod()
	_, err := r.Runtime.CreateContainer(r.Context(),
		&cri.CreateContainerRequest{PodSandboxId: plain.id, SandboxConfig: plain.config,
			Config: plain.containerConfig("p",
				func(c *cri.ContainerConfig) { c.Linux.SecurityContext.Privileged = true })})
	r.note("a privileged container in a pod that is not", status.Code(err) != codes.OK)
}
