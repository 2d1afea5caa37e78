package volume

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carob/internal/base/securepath"
	"carob/internal/base/testwait"
)

// A disk with a file system is checked before it is mounted, as by upstream's SafeFormatAndMount: only errors that fsck
// found and did not correct keep it from being mounted.
func TestCheckedDisk(t *testing.T) {
	const formatted, blank = "exit 0", "exit 2"
	tests := []struct {
		name, blkid, fsck, option string
		ran                       string
		err                       string
	}{
		{name: "clean", blkid: formatted, fsck: "exit 0", ran: "fsck -a DEV\nmount -t ext4 -o rw -- DEV DIR"},
		{name: "corrected", blkid: formatted, fsck: "exit 1", ran: "fsck -a DEV\nmount -t ext4 -o rw -- DEV DIR"},
		{name: "uncorrected", blkid: formatted, fsck: "echo 'root inode is lost'; exit 4", ran: "fsck -a DEV",
			err: "'fsck' found errors on device DEV but could not correct them: root inode is lost"},
		{name: "fails", blkid: formatted, fsck: "exit 8", ran: "fsck -a DEV\nmount -t ext4 -o rw -- DEV DIR"},
		{name: "fails, with errors", blkid: formatted, fsck: "exit 12",
			ran: "fsck -a DEV\nmount -t ext4 -o rw -- DEV DIR"},
		{name: "dies", blkid: formatted, fsck: "kill -9 $$", ran: "fsck -a DEV\nmount -t ext4 -o rw -- DEV DIR"},
		{name: "missing", blkid: formatted, ran: "mount -t ext4 -o rw -- DEV DIR"},
		{name: "read-only", blkid: formatted, fsck: "exit 4", option: "ro", ran: "mount -t ext4 -o ro -- DEV DIR"},
		{name: "blank", blkid: blank, fsck: "exit 4", ran: "mkfs.ext4 -F -m0 DEV\nmount -t ext4 -o rw -- DEV DIR"},
		{name: "blank, read-only", blkid: blank, option: "ro",
			err: "cannot mount unformatted disk DEV as we are manipulating it in read-only mode"},
		{name: "unknown content", blkid: "exit 8", fsck: "exit 0",
			err: "blkid -p -u filesystem,raid,crypto,other -- DEV: exit status 8:"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			programs, device := t.TempDir(), filepath.Join(t.TempDir(), "disk")
			ran := filepath.Join(programs, "ran")
			for name, text := range map[string]string{"fsck": tc.fsck, "mount": "exit 0", "mkfs.ext4": "exit 0"} {
				if text != "" {
					writeProgram(t, programs, name, `echo "${0##*/} $*" >>"${0%/*}/ran"; `+text)
				}
			}
			writeProgram(t, programs, "blkid", tc.blkid)
			if err := errors.Join(os.WriteFile(device, nil, 0o600), os.WriteFile(ran, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", programs)
			option := "rw"
			if tc.option != "" {
				option = tc.option
			}
			dir := filepath.Join(t.TempDir(), "on")
			names := strings.NewReplacer("DEV", device, "DIR", dir)
			err := mountDisk(t.Context(), dir, "ext4", device, []string{option})
			wrong := names.Replace(tc.err)
			if text := errorText(err); !strings.HasPrefix(text, wrong) || wrong == "" && text != "" {
				t.Errorf("got error %q, want %q", text, wrong)
			}
			got, err := os.ReadFile(ran)
			if want := names.Replace(tc.ran); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("ran %q, want %q, %v", got, want, err)
			}
		})
	}
	if err := check(t.Context(), "-y", time.Second); err == nil {
		t.Error("fsck got an option")
	}
}

// A check that never ends ends with its pod, at a moment that fsck chooses; the disk is not mounted. One that does not
// choose any is killed, with the program that it runs.
func TestCheckThatNeverEnds(t *testing.T) {
	for name, wait := range map[string]string{
		// The shell forks before it has a handler, which a child that has not begun its program would inherit.
		"asked": `sleep 1000 >/dev/null 2>&1 & s=$!; trap 'kill -9 $s; echo >"${0%/*}/stopped"; exit 32' TERM
			echo >"${0%/*}/runs"; wait`,
		"killed": `trap '' TERM; echo >"${0%/*}/runs"; while :; do sleep 1000; done`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := program(t, "fsck", wait)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ends := time.Hour
			if name == "killed" {
				ends = time.Millisecond
			}
			ended := make(chan error, 1)
			go func() { ended <- check(ctx, "/dev/null", ends) }()
			testwait.For(t, "fsck", func() bool { _, err := os.Stat(filepath.Join(dir, "runs")); return err == nil })
			cancel()
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "it has not ended") {
				t.Errorf("got %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "stopped")); (err == nil) != (name == "asked") {
				t.Errorf("was asked to stop: %v", err)
			}
		})
	}
}

// Real damage: what fsck repairs without loss is repaired, what it does not keeps the disk from being mounted. A device
// that is mounted is not checked again.
func TestDamagedDisk(t *testing.T) {
	for _, p := range []string{"mkfs.ext4", "debugfs", "fsck.ext4"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
	file, device := attachedFile(t)
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	change := func(program string, args ...string) {
		t.Helper()
		if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", program, args, err, out)
		}
	}
	change("mkfs.ext4", "-q", "-F", device)
	change("debugfs", "-w", "-R", "ssv free_blocks_count 7", device)
	change("debugfs", "-w", "-R", "ssv state 2", device) // errors
	dir := filepath.Join(t.TempDir(), "on")
	if err := mountDisk(t.Context(), dir, "ext4", device, nil); err != nil {
		t.Fatal(err)
	}
	if !inUse(device) {
		t.Error("a mounted device is not in use")
	}
	if err := mountDisk(t.Context(), dir+"2", "ext4", device, nil); err != nil {
		t.Error(err)
	}
	change("umount", dir+"2")
	change("umount", dir)
	state, err := exec.Command("dumpe2fs", "-h", device).CombinedOutput()
	if err != nil || strings.Contains(string(state), "with errors") {
		t.Errorf("%s was not repaired: %v: %s", file, err, state)
	}
	change("debugfs", "-w", "-R", "clri <2>", device) // its root
	change("debugfs", "-w", "-R", "ssv state 2", device)
	err = mountDisk(t.Context(), dir, "ext4", device, nil)
	want := "'fsck' found errors on device " + device + " but could not correct them: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if securepath.IsMounted(dir) {
		change("umount", dir)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
