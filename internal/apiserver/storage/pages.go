package storage

import (
	"path/filepath"

	"k8s.io/klog/v2"

	"carob/internal/base/gctuning"
)

// releasePages removes the pages of the database from the process. etcd maps its file, and after
// a burst of 2,000 pods tens of megabytes of it were read. The mapping stays: etcd begins with
// one that is larger than the database may get, only rewriting the file creates another, and
// Close waits.
func (e *Engine) releasePages() {
	if e.failure.get() != nil || !e.housekeeping.file.TryLock() {
		return // the file is being written anew
	}
	defer e.housekeeping.file.Unlock()
	file, err := filepath.EvalSymlinks(filepath.Join(e.server.Cfg.SnapDir(), "db"))
	if err == nil {
		err = gctuning.ReleaseMapped(file)
	}
	if err != nil {
		klog.Background().V(2).Info("Cannot release the database's pages in memory", "err", err)
	}
}
