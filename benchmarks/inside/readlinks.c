/* Runs in the machine: the least that any look at all descriptors costs, one readlinkat(2) for each link in /proc/PID/fd.
 *
 * It is the yardstick for the scan, which must do more: a number for each descriptor, threads, rings and mappings. Prints how
 * many processes and descriptors it saw, and the seconds that it took, without its own start.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long processes, links;

static void look(const char *pid)
{
	char path[64], text[4096];
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
	folder = opendir(path);
	if (!folder)
		return;
	processes++;
	while ((entry = readdir(folder)))
		if (entry->d_name[0] != '.' && readlinkat(dirfd(folder), entry->d_name, text, sizeof text) >= 0)
			links++;
	closedir(folder);
}

int main(void)
{
	struct timespec began, ended;
	struct dirent *entry;
	DIR *proc;

	clock_gettime(CLOCK_MONOTONIC, &began);
	proc = opendir("/proc");
	if (!proc)
		return 1;
	while ((entry = readdir(proc)))
		if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
			look(entry->d_name);
	closedir(proc);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	printf("%ld %ld %.6f\n", processes, links,
	       (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9);
	return 0;
}
